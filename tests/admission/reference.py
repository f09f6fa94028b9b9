"""The tutorial's rule once more, written in plain lists and sharing nothing with the scheduler."""

from __future__ import annotations

from typing import Any

from admission.scenario import Policy, Priority, Request


class Reference:
    """``left`` is [prompt left, output left] by request; ``queue`` and ``active`` are lists of ids."""

    def __init__(self, policy: Policy, requests: tuple[Request, ...]) -> None:
        self.policy = policy
        self.requests = requests
        self.left = {r.id: [r.prompt, r.output] for r in requests}
        self.high = {r.id: r.priority is Priority.HIGH for r in requests}
        self.queue: list[str] = []
        self.active: list[str] = []
        self.trace: list[dict[str, Any]] = []
        self.summary: dict[str, dict[str, Any]] = {
            r.id: {"first_output": None, "completed": None, "preemptions": 0, "result": "waiting"} for r in requests
        }

    def document(self) -> dict[str, Any]:
        termination = "iteration_limit"
        for iteration in range(self.policy.max_iterations):
            row: dict[str, Any] = {"iteration": iteration, "preempted": [], "rejected": []}
            for request in self.requests:
                if request.arrival == iteration:
                    self.arrive(request.id, row)
            while self.queue and len(self.active) < self.policy.max_active:
                self.active.append(self.queue.pop(0))
            self.compute(row)
            self.trace.append(row | {"queue": list(self.queue), "active": list(self.active)})
            if all(entry["result"] in ("completed", "rejected") for entry in self.summary.values()):
                termination = "all_terminal"
                break
        for name in self.active:
            self.summary[name]["result"] = "active"
        names = ("max_active", "max_queue", "token_budget", "prefill_chunk")
        policy = {name: getattr(self.policy, name) for name in names}
        return {"termination": termination, "policy": policy, "trace": self.trace, "requests": self.summary}

    def arrive(self, new: str, row: dict[str, Any]) -> None:
        room = len(self.queue) < self.policy.max_queue
        normals = [name for name in self.active if not self.high[name]]
        if len(self.active) < self.policy.max_active:
            self.active.append(new)
        elif self.high[new] and self.policy.priority_preemption and normals and room:
            victim = max(normals, key=lambda name: sum(self.left[name]))
            self.active.remove(victim)
            self.queue.insert(0, victim)
            self.active.append(new)
            row["preempted"].append(victim)
            self.summary[victim]["preemptions"] += 1
        elif room:
            self.queue.append(new)
        else:
            row["rejected"].append(new)
            self.summary[new]["result"] = "rejected"

    def compute(self, row: dict[str, Any]) -> None:
        budget = self.policy.token_budget
        decode = [name for name in self.active if self.left[name][0] == 0]
        prefilling = [name for name in self.active if self.left[name][0] > 0]
        for name in decode:
            self.left[name][1] -= 1
            budget -= 1
        prefill: list[list[Any]] = []
        emitted: list[str] = []
        for name in prefilling:
            chunk = min(self.left[name][0], self.policy.prefill_chunk, budget)
            if chunk == 0:
                break
            budget -= chunk
            self.left[name][0] -= chunk
            prefill.append([name, chunk])
            if self.left[name][0] == 0:
                self.left[name][1] -= 1
                emitted.append(name)
                self.summary[name]["first_output"] = row["iteration"]
        completed = [name for name in self.active if self.left[name][1] == 0]
        for name in completed:
            self.summary[name] |= {"completed": row["iteration"], "result": "completed"}
        self.active = [name for name in self.active if name not in completed]
        row |= {"decode": decode, "prefill": prefill, "prefill_emitted": emitted}
        row |= {"completed": completed, "unused_budget": budget}


def reference(policy: Policy, requests: tuple[Request, ...]) -> dict[str, Any]:
    return Reference(policy, requests).document()

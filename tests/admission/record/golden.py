"""The logs of a golden scenario."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from admission.presets import PRESETS
from admission.record.clocks import Clocks
from admission.record.entries import LogEntry
from admission.record.explain import Explainer
from admission.record.picture import Picture, picture
from admission.record.simulated import DRIVER, SimulationLog
from admission.record.tell import tell
from admission.scenario import parse_scenario
from admission.simulate import simulate

GOLDEN = Path(__file__).parents[2] / "golden"


@dataclass(frozen=True)
class GoldenLogs:
    driver: list[LogEntry]
    door: list[LogEntry]

    @property
    def clocks(self) -> Clocks:
        return Clocks([self.driver, self.door])

    def explainer(self) -> Explainer:
        return Explainer([self.door], [tell(self.driver)], self.clocks)

    def picture(self) -> Picture:
        return picture([tell(self.driver)], [self.door], self.clocks)


def golden_logs(name: str = "baseline") -> GoldenLogs:
    driver: list[LogEntry] = []
    door: list[LogEntry] = []
    scenario = parse_scenario((GOLDEN / f"{name}.scenario.json").read_text())
    simulate(scenario, PRESETS["tutorial"], SimulationLog(drivers={DRIVER: driver.append}, door=door.append))
    return GoldenLogs(driver, door)

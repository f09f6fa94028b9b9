// Threads that share the items of a loop, beside other programs that want the processors too.
//
// Who calls begins at once and takes one item after another; helpers join when they get a processor. At the end the caller
// waits only for helpers that are in the middle of an item, never for one that has not come: a helper whose processor runs
// something else costs nothing. Between two loops of a step helpers look out for the next one for a moment, then sleep.

#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <mutex>
#include <system_error>
#include <thread>

class Team {
public:
    // Calls act(item) for each of `items`, on the caller's thread and up to `threads - 1` helpers.
    template <class Act>
    void share(int64_t items, int64_t threads, Act act) {
        share_joined(items, threads, [&]() -> Act& { return act; });
    }

    // The same where a thread needs something of its own to work with: each that takes part makes its act by `join()`, and
    // destroys it when no item is left.
    template <class Join>
    void share_joined(int64_t items, int64_t threads, Join join) {
        const std::unique_lock<std::mutex> turn(mutex_, std::try_to_lock);
        if (threads < 2 || items < 2 || !turn.owns_lock()) {  // another model is computing: its helpers are its own
            auto&& act = join();
            for (int64_t item = 0; item < items; item++) act(item);
            return;
        }
        while (num_helpers_ < threads - 1 && add_helper()) {
        }
        context_ = &join;
        work_ = [](Team& team, void* context) {
            auto&& act = (*static_cast<Join*>(context))();
            for (int64_t item; (item = team.next_++) < team.items_;) act(item);
        };
        items_ = items;
        next_ = 0;
        room_ = threads - 1;
        loop_++;
        loop_.notify_all();
        work_(*this, context_);
        int64_t closed = room_.exchange(CLOSED);  // nobody joins from here on; who did is missing from the room
        while (closed != threads - 1) {
            if (left_ != 0) closed += left_.exchange(0);
            std::this_thread::yield();
        }
    }

private:
    static constexpr int64_t CLOSED = INT64_MIN / 2;
    static constexpr auto LOOKS_OUT = std::chrono::microseconds(100);  // longer than what lies between two loops of a step

    // False where the system gives this process no more threads: those that there are will do.
    bool add_helper() {
        try {
            std::thread([this] { help(); }).detach();
        } catch (const std::system_error&) {
            return false;
        }
        num_helpers_++;
        return true;
    }

    void help() {
        int32_t seen = 0;
        for (;;) {
            const auto since = std::chrono::steady_clock::now();
            while (loop_ == seen && std::chrono::steady_clock::now() - since < LOOKS_OUT) std::this_thread::yield();
            loop_.wait(seen);
            seen = loop_;
            int64_t room = room_;
            while (room > 0 && !room_.compare_exchange_weak(room, room - 1)) {
            }
            if (room <= 0) continue;
            work_(*this, context_);
            int64_t open = room_;
            while (open >= 0 && !room_.compare_exchange_weak(open, open + 1)) {
            }
            if (open < 0) left_++;
        }
    }

    std::mutex mutex_;
    int64_t num_helpers_ = 0;
    void* context_ = nullptr;
    void (*work_)(Team&, void*) = nullptr;
    int64_t items_ = 0;
    std::atomic<int64_t> next_{0}, room_{CLOSED}, left_{0};
    std::atomic<int32_t> loop_{0};
};

// Of this library; never destroyed, since its helpers end with the process only. Static, or libraries built of other sources
// that a process loads too would share it.
static Team& team() {
    static Team* const one = new Team;
    return *one;
}

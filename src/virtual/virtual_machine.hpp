// A machine in virtual time: a clock, the events that lie ahead, and workers that take the time
// that their rates say. The virtual ports put their events here; nothing runs beside anything.
//
// Thread: one.
#pragma once

#include <cstdint>
#include <functional>
#include <queue>
#include <vector>

#include "base/intrusive_queue.hpp"
#include "ports/simulation.hpp"

namespace strata {

// Of one worker; rate 0: it takes no time.
struct WorkerPace {
  double checked_bytes_per_second = 0;
  double updated_elems_per_second = 0;
  double summed_elems_per_second = 0;
};

class VirtualMachine final : public Simulation {
 public:
  VirtualMachine(unsigned workers, const WorkerPace& pace) : workers_(*this, workers, pace) {}
  VirtualMachine(const VirtualMachine&) = delete;
  VirtualMachine& operator=(const VirtualMachine&) = delete;

  std::int64_t now_ns() const override { return now_ns_; }
  Workers& workers() override { return workers_; }
  void drive(std::function<bool()> pass) override { pass_ = std::move(pass); }
  void run_until(const std::function<bool()>& reached) override;

  // Calls `event` when it is `at_ns`, after those that were asked for before. Pre: not in the past.
  void call_at(std::int64_t at_ns, std::function<void()> event);
  // Lets so much time pass.
  void sleep(std::int64_t duration_ns);

  // Events that have happened.
  std::uint64_t events() const { return happened_; }

 private:
  struct Ahead {
    std::int64_t at_ns = 0;
    std::uint64_t sequence = 0;
    std::function<void()> event;
    bool operator>(const Ahead& other) const {
      return at_ns != other.at_ns ? at_ns > other.at_ns : sequence > other.sequence;
    }
  };

  class PacedWorkers final : public Workers {
   public:
    PacedWorkers(VirtualMachine& machine, unsigned count, const WorkerPace& pace)
        : machine_(machine), idle_(count), pace_(pace) {}
    void submit(Job& job) override;
    double busy_seconds() const override { return static_cast<double>(busy_ns_) * 1e-9; }

   private:
    void start(Job& job);
    std::int64_t duration_ns(const JobCost& cost) const;

    VirtualMachine& machine_;
    unsigned idle_;
    const WorkerPace pace_;
    IntrusiveQueue<Job> waiting_;
    std::int64_t busy_ns_ = 0;
  };

  bool happen();

  std::int64_t now_ns_ = 0;
  std::uint64_t next_sequence_ = 0;
  std::uint64_t happened_ = 0;
  std::priority_queue<Ahead, std::vector<Ahead>, std::greater<>> ahead_;
  std::function<bool()> pass_;
  PacedWorkers workers_;
};

}  // namespace strata

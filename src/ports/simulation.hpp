// Port: a machine whose time is arithmetic. Nothing is computed and no payload is touched: work
// takes the time that it is declared to take, and time passes when everyone waits. A session on
// such a machine makes every decision that it makes on a real one.
//
// Thread: one, that of the program; nothing blocks.
#pragma once

#include <functional>

#include "ports/workers.hpp"
#include "strata/clock.hpp"

namespace strata {

class Simulation : public Clock {
 public:
  virtual Workers& workers() = 0;

  // `pass` does what is possible at the present time and says whether that was anything: the
  // engine's loop. Empty: nobody's.
  virtual void drive(std::function<bool()> pass) = 0;

  // Lets time pass until `reached`. Asserts that something is left to happen until then.
  virtual void run_until(const std::function<bool()>& reached) = 0;
};

}  // namespace strata

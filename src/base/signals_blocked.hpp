// Threads of the library take no signals of the process: SIGXFSZ would end it (the call then
// returns EFBIG, which is reported), and a handler of the program should run on a thread of the
// program. Faults stay as they are.
//
// Blocks them on this thread, and so on the threads that it starts, until the end of the scope.
#pragma once

#include <pthread.h>
#include <signal.h>

#include "base/check.hpp"

namespace strata {

class SignalsBlocked {
 public:
  SignalsBlocked() {
    sigset_t all;
    sigfillset(&all);
    for (const int fault : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGABRT, SIGSYS}) {
      sigdelset(&all, fault);
    }
    const int failed = pthread_sigmask(SIG_BLOCK, &all, &old_mask_);
    STRATA_ASSERT(failed == 0, "pthread_sigmask refused to block signals");
  }
  ~SignalsBlocked() { pthread_sigmask(SIG_SETMASK, &old_mask_, nullptr); }
  SignalsBlocked(const SignalsBlocked&) = delete;
  SignalsBlocked& operator=(const SignalsBlocked&) = delete;

 private:
  sigset_t old_mask_{};
};

}  // namespace strata

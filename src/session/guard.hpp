// Which errors end a session, and the one place where they do.
#pragma once

#include "session/session_impl.hpp"
#include "strata/error.hpp"

namespace strata {

// A mistake of the caller that changed nothing: the program may correct it and go on.
inline bool is_recoverable(ErrorCode code) {
  return code == ErrorCode::invalid_argument || code == ErrorCode::budget_exceeded ||
         code == ErrorCode::not_supported;
}

// A loss of states, after which one asks what is left.
inline bool is_of_storage(ErrorCode code) {
  return code == ErrorCode::io || code == ErrorCode::no_space || code == ErrorCode::corrupt;
}

template <class Call>
auto SessionImpl::guarded(Call&& call) {
  {
    const std::scoped_lock lock(failure_mutex_);
    if (failure_) {
      throw Error(ErrorCode::closed, std::string("the session failed before: ") + failure_->what());
    }
  }
  try {
    return call();
  } catch (const Error& error) {
    // An inner call has told it, or nothing was changed.
    const bool half_updated = engine_ && engine_->update_failed();
    if (has_failed() || (is_recoverable(error.code()) && !half_updated)) throw;
    const bool ask_for_states = is_of_storage(error.code()) || half_updated;
    fail(ask_for_states ? error.with(state_of_states(error.code())) : error);
    throw first_failure();
  } catch (const std::exception& error) {
    // Of the program's own functions, or no memory.
    if (engine_ && engine_->update_failed()) {
      fail(Error(ErrorCode::closed, error.what()).with(state_of_states(ErrorCode::closed)));
    }
    throw;
  }
}

}  // namespace strata

// Which errors end a session, and the one place where they do.
#pragma once

#include "session/session_impl.hpp"
#include "strata/error.hpp"

namespace strata {

// A mistake of the caller that changed nothing: the program may correct it and go on.
inline bool is_recoverable(ErrorCode code) {
  return code == ErrorCode::invalid_argument || code == ErrorCode::budget_exceeded;
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
    if (is_recoverable(error.code())) throw;
    const Error told = is_of_storage(error.code()) ? error.with(whole_step()) : error;
    fail(told);
    throw told;
  }
}

}  // namespace strata

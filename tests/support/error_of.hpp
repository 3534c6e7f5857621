// The Error that a call throws; a failure of the test when it throws none.
#pragma once

#include <gtest/gtest.h>

#include <utility>

#include "strata/error.hpp"

namespace strata::test {

template <class Call>
Error error_of(Call&& call) {
  try {
    std::forward<Call>(call)();
  } catch (const Error& error) {
    return error;
  }
  ADD_FAILURE() << "no error was thrown";
  return Error(ErrorCode::invalid_argument, "none");
}

}  // namespace strata::test

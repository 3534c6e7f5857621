// The smallest use of the installed package: it reads a configuration, sees an error as a user
// would, and talks to the communicator of a single rank.
#include <cstdio>
#include <string>

#include "strata/communicator.hpp"
#include "strata/config.hpp"
#include "strata/error.hpp"

namespace {

bool reads_configuration() {
  const auto config = strata::Config::from_json(R"({"budgets": {"device": "64MiB"}})", "consumer");
  return config.budgets.device == strata::Bytes{64U << 20U};
}

bool reports_errors() {
  try {
    strata::Config::from_json(R"({"no_such_key": 1})", "consumer");
  } catch (const strata::Error& error) {
    return error.code() == strata::ErrorCode::config &&
           std::string(error.what()).find("no_such_key") != std::string::npos;
  }
  return false;
}

bool has_communicator() {
  const auto communicator = strata::make_self_communicator();
  return communicator->size() == 1 && communicator->rank() == strata::Rank{0};
}

}  // namespace

int main() {
  const bool good = reads_configuration() && reports_errors() && has_communicator();
  std::puts(good ? "consumer: ok" : "consumer: FAILED");
  return good ? 0 : 1;
}

// Stands for bare_loop.cpp in builds without io_uring.
#include "bare_loop.hpp"
#include "strata/error.hpp"

namespace strata::tool {

std::unique_ptr<BareLoop> make_bare_loop(const BareLoopOptions&) {
  throw Error(ErrorCode::not_supported,
              "this build has no io_uring: install liburing-dev and configure with "
              "-DSTRATA_URING=ON");
}

}  // namespace strata::tool

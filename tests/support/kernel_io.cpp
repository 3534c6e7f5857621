#include "support/kernel_io.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

namespace strata::test {
namespace {

bool has_direct_io(const std::string& directory) {
  const std::string path = directory + "/probe";
  const int fd = ::open(path.c_str(), O_RDWR | O_CREAT | O_DIRECT, 0600);
  if (fd >= 0) ::close(fd);
  ::unlink(path.c_str());
  return fd >= 0;
}

void skip(const std::string& why) { GTEST_SKIP() << why; }

std::unique_ptr<BlockIo> make_serial(IoPlace& place) {
  return dynamic_cast<KernelPlace&>(place).make_serial();
}

std::unique_ptr<IoPlace> scratch_place(const MakeIo& make, bool direct) {
  auto place = std::make_unique<KernelPlace>(make, direct);
  if (!direct || has_direct_io(place->root())) return place;
  skip(place->root() + " has no O_DIRECT");
  return nullptr;
}

std::unique_ptr<IoPlace> loop_place(const MakeIo& make, Bytes sector) {
  auto place = std::make_unique<KernelPlace>(make, true);
  std::string why_not;
  if (place->put_on_loop_device({.size = 32_MiB, .sector = sector}, why_not)) return place;
  skip(why_not);
  return nullptr;
}

}  // namespace

std::vector<IoUnderTest> kernel_io_cases(const MakeIo& make,
                                         const std::function<bool()>& may_make) {
  using MakePlace = std::function<std::unique_ptr<IoPlace>()>;
  const auto one = [&](const std::string& label, MakePlace make_place) {
    return IoUnderTest{label,
                       [may_make, make_place = std::move(make_place)]() {
                         return may_make() ? make_place() : nullptr;
                       },
                       make_serial};
  };
  return {one("direct", [make] { return scratch_place(make, true); }),
          one("page_cache", [make] { return scratch_place(make, false); }),
          one("sectors_512", [make] { return loop_place(make, 512_B); }),
          one("sectors_4096", [make] { return loop_place(make, 4_KiB); })};
}

}  // namespace strata::test

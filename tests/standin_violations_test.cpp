// Programs that lack a wait, whose work may really race: apart, since the thread sanitizer does not
// run them.
#include "support/standin/test_pipeline.hpp"

namespace strata::test::standin {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

using StandinViolations = Standin;

TEST_F(StandinViolations, EveryIgnoredWaitIsFoundWithEverySeed) {
  for (std::uint64_t n = 0; n < kWaits; ++n) {
    SCOPED_TRACE(fmt::format("wait {}", n));
    for_each_world([n](const Options& options) {
      configure(options);
      ignore_wait(n);
      Pipeline pipeline;
      expect_ok(pipeline.run());
      EXPECT_EQ(waits(), kWaits);
      EXPECT_THAT(finish(), Contains(HasSubstr("race: ")));
    });
  }
}

TEST_F(StandinViolations, MemoryIsUsableAfterItsAllocationInStreamOrder) {
  configure();
  const cudaStream_t stream = make_stream();
  const cudaStream_t other = make_stream();
  void* memory = nullptr;
  expect_ok(cudaMallocAsync(&memory, 64, stream));
  expect_ok(cudaMemsetAsync(memory, 1, 64, other));
  expect_ok(cudaFreeAsync(memory, stream));
  end(stream);
  end(other);
  EXPECT_THAT(finish(), ElementsAre(HasSubstr("nothing orders it after allocation"),
                                    HasSubstr("nothing orders it after set")));
}

}  // namespace
}  // namespace strata::test::standin

// Random edits of valid configuration text: whatever the text, the answer is a valid Config or one
// Error(config) of one line, and what parses survives a round trip.
#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <string_view>

#include "base/rng.hpp"
#include "strata/config.hpp"

namespace strata {
namespace {

class Draws {
 public:
  explicit Draws(std::uint64_t seed) : seed_(seed) {}
  std::uint64_t below(std::uint64_t limit) { return rng::at(seed_, index_++) % limit; }

 private:
  std::uint64_t seed_;
  std::uint64_t index_ = 0;
};

std::string valid_text(Draws& draws) {
  Config config;
  config.budgets.nvme = 1_GiB;
  config.nvme.directories = {"/mnt/a", "/mnt/\xC3\xBC \"b\""};
  config.placement.optimizer = {0.25, 0.25, 0.5};
  config.engine.tile = Bytes{(256_KiB).value << draws.below(8)};
  config.engine.workers = static_cast<unsigned>(draws.below(257));
  config.optimizer.learning_rate = 1.0 / static_cast<double>(1 + draws.below(1'000'000));
  return config.to_json();
}

constexpr std::string_view kPieces[] = {
    "{",
    "}",
    "[",
    "]",
    ",",
    ":",
    "\"",
    "\\",
    "\\u0000",
    "\n",
    " ",
    "null",
    "true",
    "-1",
    "1e400",
    "1e-400",
    "0.5",
    "18446744073709551616",
    "\"\"",
    "//",
    "host",
    "nvme",
    "\"1GiB\"",
    "\xFF",
    "\xC3",
    "\xEF\xBB\xBF",
    ".",
    "-",
    "\"budgets\": {}",
    "\"a\": 1,",
    std::string_view("\0", 1),
};

void mutate(std::string& text, Draws& draws) {
  const std::size_t at = draws.below(text.size() + 1);
  const std::size_t length = draws.below(12);
  switch (draws.below(5)) {
    case 0: text.insert(at, kPieces[draws.below(std::size(kPieces))]); break;
    case 1: text.erase(at, length); break;
    case 2: text.insert(at, text.substr(draws.below(text.size() + 1), length)); break;
    case 3: text.insert(at, 1, static_cast<char>(draws.below(256))); break;
    case 4:
      if (at < text.size()) text[at] = static_cast<char>(draws.below(128));
      break;
  }
}

enum class Outcome { parsed, refused };

Outcome try_text(const std::string& text) {
  try {
    const Config config = Config::from_json(text, "fuzz.json");
    EXPECT_NO_THROW(config.validate());
    EXPECT_EQ(Config::from_json(config.to_json(), "again.json"), config);
    return Outcome::parsed;
  } catch (const Error& error) {
    const std::string_view message = error.what();
    EXPECT_EQ(error.code(), ErrorCode::config);
    EXPECT_EQ(message.find_first_of(std::string_view("\n\r\0", 3)), message.npos) << message;
    EXPECT_LT(message.size(), 600U) << message;
    EXPECT_TRUE(message.starts_with("fuzz.json:")) << message;
    return Outcome::refused;
  }
}

TEST(ConfigFuzz, AnyTextParsesOrFailsWithOneLine) {
  constexpr std::uint64_t kTexts = 4000;
  std::uint64_t parsed = 0;
  for (std::uint64_t seed = 0; seed < kTexts; ++seed) {
    Draws draws(seed);
    std::string text = valid_text(draws);
    for (std::uint64_t edits = draws.below(5); edits > 0; --edits) mutate(text, draws);
    if (try_text(text) == Outcome::parsed) ++parsed;
    ASSERT_FALSE(testing::Test::HasFailure()) << "seed " << seed << ", text: " << text;
  }
  // Both outcomes must have been seen, or the test would show nothing.
  EXPECT_GT(parsed, kTexts / 10);
  EXPECT_LT(parsed, kTexts / 10 * 9);
}

TEST(ConfigFuzz, EveryPrefixOfAValidTextIsRefused) {
  Draws draws(1);
  const std::string text = valid_text(draws);
  const std::size_t end = text.find_last_of('}');
  for (std::size_t length = 0; length <= end; ++length) {
    EXPECT_EQ(try_text(text.substr(0, length)), Outcome::refused) << "length " << length;
  }
}

}  // namespace
}  // namespace strata

#include "strata/config.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "session/config_cursor.hpp"
#include "session/config_json.hpp"
#include "session/config_keys.hpp"
#include "session/config_reader.hpp"

namespace strata {
namespace {

using config::Key;
using config::Reading;
using config::Relation;

class Descriptor {
 public:
  explicit Descriptor(int fd) : fd_(fd) {}
  ~Descriptor() {
    if (fd_ >= 0) ::close(fd_);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int get() const { return fd_; }

 private:
  int fd_;
};

[[noreturn]] void fail_file(const std::string& path, std::string_view what, int errnum) {
  ErrorContext context;
  context.errnum = errnum;
  context.path = config::excerpt(path);
  throw Error(ErrorCode::config,
              fmt::format("{} the configuration; give the path of a readable JSON file", what),
              std::move(context));
}

std::string read_file(const std::string& path) {
  constexpr std::size_t kLargest = 1 << 20;
  const Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (file.get() < 0) fail_file(path, "cannot open", errno);
  std::string text;
  std::array<char, 4096> chunk;
  while (text.size() <= kLargest) {
    const ssize_t count = ::read(file.get(), chunk.data(), chunk.size());
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) fail_file(path, "cannot read", errno);
    if (count == 0) return text;
    text.append(chunk.data(), static_cast<std::size_t>(count));
  }
  fail_file(path, "more than 1 MiB, too large for", EFBIG);
}

// The first key or relation that a configuration breaks.
struct Violation {
  std::string path;
  std::string must;
};

std::optional<Violation> first_violation(const Config& config) {
  for (const Key& key : config::keys()) {
    if (is_valid(key, config)) continue;
    return Violation{std::string(key.path), "be " + expectation(key)};
  }
  for (const Relation& relation : config::relations()) {
    if (relation.holds(config)) continue;
    return Violation{std::string(relation.path), std::string(relation.text)};
  }
  return std::nullopt;
}

std::string value_text(Config config, std::string_view path) {
  constexpr auto kReplace = nlohmann::json::error_handler_t::replace;
  const auto json = config::json_of(*config::field_at(config, path));
  return config::excerpt(json.dump(-1, ' ', false, kReplace));
}

std::string describe(const Violation& violation, std::string_view found) {
  return fmt::format("\"{}\" must {}; found {}", violation.path, violation.must, found);
}

// Absent keys whose default is the value of another key.
void take_linked_defaults(Reading& reading) {
  for (const Key& key : config::keys()) {
    if (key.default_from.empty() || reading.values.contains(key.path)) continue;
    const config::Field source = *config::field_at(reading.config, key.default_from);
    std::visit([&]<class T>(T* target) { *target = *std::get<T*>(source); },
               key.field(reading.config));
  }
}

// What is a mild decay where it is decoupled is a strong one in the gradient.
void take_decay_of_optimizer(Reading& reading) {
  Config::Optimizer& optimizer = reading.config.optimizer;
  const bool decoupled = optimizer.name == "adamw" || optimizer.name == "lion";
  if (!decoupled && !reading.values.contains("optimizer.weight_decay")) optimizer.weight_decay = 0;
}

void check(const Reading& reading, std::string_view source_name) {
  const auto violation = first_violation(reading.config);
  if (!violation) return;
  const auto value = reading.values.find(violation->path);
  const bool is_default = value == reading.values.end();
  if (is_default || value->second.text.empty()) {
    const std::string found = value_text(reading.config, violation->path);
    const std::string message = describe(*violation, found);
    if (!is_default) throw config::error_at(source_name, value->second.place, message);
    throw Error(ErrorCode::config,
                fmt::format("{}: {} by default", config::excerpt(source_name), message));
  }
  throw config::error_at(source_name, value->second.place,
                         describe(*violation, value->second.text));
}

}  // namespace

Config Config::from_file(const std::string& path) { return from_json(read_file(path), path); }

Config Config::from_json(std::string_view text, std::string_view source_name) {
  Reading reading = config::read(text, source_name);
  take_linked_defaults(reading);
  take_decay_of_optimizer(reading);
  check(reading, source_name);
  return std::move(reading.config);
}

Config::LossScaleKind Config::resolved_loss_scale() const {
  if (loss_scale.kind != LossScaleKind::automatic) return loss_scale.kind;
  const bool narrow = precision.param == DType::fp16 || precision.reduce == DType::fp16;
  return narrow ? LossScaleKind::dynamic : LossScaleKind::none;
}

void Config::validate() const {
  const auto violation = first_violation(*this);
  if (!violation) return;
  throw Error(ErrorCode::config,
              "configuration: " + describe(*violation, value_text(*this, violation->path)));
}

}  // namespace strata

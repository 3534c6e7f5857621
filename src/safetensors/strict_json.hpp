// JSON of files that anybody may have written, event by event, so that no text makes a tree that is
// many times its size: nesting is limited, a NUL byte or a byte order mark is no JSON, and whatever
// is not JSON becomes an Error(corrupt) that names the file and the byte.
// Thread: one at a time per object.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <variant>

namespace strata::safetensors {

using Scalar = std::variant<std::nullptr_t, bool, std::int64_t, std::uint64_t, double, std::string>;

enum class Bracket : bool { object, array };

class StrictJson : protected nlohmann::json_sax<nlohmann::json> {
 public:
  // Throws Error(corrupt). `text` is what the file at `path` holds.
  void parse(std::string_view text);

 protected:
  StrictJson(const std::string& path, unsigned most_depth) : path_(path), most_depth_(most_depth) {}

  // `depth()` counts the brackets around: 1 inside the outermost, which is an object. What a
  // function does not take it refuses.
  virtual void on_open(Bracket bracket) = 0;  // depth() counts it already
  virtual void on_close() = 0;                // and here no more
  virtual void on_name(std::string name) = 0;
  virtual void on_scalar(Scalar value) = 0;

  unsigned depth() const { return depth_; }
  const std::string& path() const { return path_; }

 private:
  bool null() final { return take(nullptr); }
  bool boolean(bool value) final { return take(value); }
  bool number_integer(number_integer_t value) final { return take(value); }
  bool number_unsigned(number_unsigned_t value) final { return take(value); }
  bool number_float(number_float_t value, const string_t&) final { return take(value); }
  bool string(string_t& value) final { return take(std::move(value)); }
  bool binary(binary_t&) final { return false; }  // no JSON text has any
  bool key(string_t& name) final;
  bool start_object(std::size_t) final { return open(Bracket::object); }
  bool end_object() final { return close(); }
  bool start_array(std::size_t) final { return open(Bracket::array); }
  bool end_array() final { return close(); }
  bool parse_error(std::size_t position, const std::string& last_token,
                   const nlohmann::detail::exception& report) final;

  bool take(Scalar value);
  bool open(Bracket bracket);
  bool close();

  const std::string& path_;
  const unsigned most_depth_;
  unsigned depth_ = 0;
};

}  // namespace strata::safetensors

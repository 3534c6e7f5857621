// What a program holds by an opaque handle. A handle is a number that is never used twice in a
// process and never a valid address, so that a stale one is told from a live one.
// Thread: one at a time.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <string_view>
#include <utility>

namespace strata::test::standin {

template <class T, class Handle>
class HandleTable {
 public:
  // `kind` names the things in messages; `tag` tells the handles of two tables apart.
  HandleTable(std::string_view kind, std::uint64_t tag) : kind_(kind), tag_(tag) {}

  std::string_view kind() const { return kind_; }

  // Sets object.number, from 1 in this table.
  Handle add(std::shared_ptr<T> object) {
    static std::atomic<std::uint64_t> next{1};
    object->number = ++made_;
    const std::uint64_t value = kNotCanonical | tag_ << 40 | next++ << 4;
    const Handle handle = reinterpret_cast<Handle>(value);
    objects_.emplace(handle, std::move(object));
    return handle;
  }

  // Null if there is none, or none any more.
  std::shared_ptr<T> find(Handle handle) const {
    const auto found = objects_.find(handle);
    return found == objects_.end() ? nullptr : found->second;
  }

  void remove(Handle handle) { objects_.erase(handle); }

  void excuse(Handle handle) {
    if (const auto object = find(handle)) object->excused = true;
  }

  const std::map<Handle, std::shared_ptr<T>>& all() const { return objects_; }

 private:
  // Addresses of this form fault on every x86-64 and arm64.
  static constexpr std::uint64_t kNotCanonical = 0x5D00'0000'0000'0000;

  const std::string_view kind_;
  const std::uint64_t tag_;
  std::uint64_t made_ = 0;
  std::map<Handle, std::shared_ptr<T>> objects_;
};

}  // namespace strata::test::standin

#include "safetensors/header.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "safetensors/header_json.hpp"
#include "safetensors/message_text.hpp"

namespace strata::safetensors {
namespace {

constexpr std::uint64_t kMost = std::numeric_limits<std::uint64_t>::max();

[[noreturn]] void refuse_tensor(const std::string& path, std::string_view name,
                                std::string_view what) {
  refuse(path, fmt::format("tensor {} {}", in_quotes(name), what));
}

const ElementType& type_of(const HeaderEntry& entry, const std::string& path) {
  const ElementType* type = element_type(entry.type);
  if (type != nullptr) return *type;
  refuse_tensor(
      path, entry.name,
      fmt::format("has the dtype {}, which the format does not have", in_quotes(entry.type)));
}

// Bytes of `count` elements; nothing for a number that overflows or ends inside a byte.
std::optional<std::uint64_t> bytes_of(std::uint64_t count, std::uint32_t bits) {
  if (count > kMost / bits) return std::nullopt;
  return count * bits % 8 == 0 ? std::optional(count * bits / 8) : std::nullopt;
}

void check_place(const HeaderTensor& tensor, std::uint64_t data_bytes, const std::string& path) {
  const auto fail = [&](std::string_view what) { refuse_tensor(path, tensor.name, what); };
  if (tensor.begin > tensor.end) {
    fail(fmt::format("has data_offsets that end before they begin: [{}, {}]", tensor.begin,
                     tensor.end));
  }
  if (tensor.end > data_bytes) {
    fail(fmt::format("ends at byte {} of the data, of which the file has {}", tensor.end,
                     data_bytes));
  }
  const auto bytes = bytes_of(tensor.count_elems, tensor.type->bits);
  if (!bytes) {
    fail(fmt::format("has {} elements of {} bits, which are no number of bytes", tensor.count_elems,
                     tensor.type->bits));
  }
  if (*bytes != tensor.end - tensor.begin) {
    fail(fmt::format("has a shape of {} bytes and data_offsets of {}", *bytes,
                     tensor.end - tensor.begin));
  }
}

HeaderTensor checked(HeaderEntry entry, std::uint64_t data_bytes, const std::string& path) {
  const auto fail = [&](std::string_view what) { refuse_tensor(path, entry.name, what); };
  if (!entry.has_type) fail("has no dtype");
  if (!entry.has_shape) fail("has no shape");
  if (!entry.has_offsets) fail("has no data_offsets");
  if (entry.offsets.size() != 2) fail("has data_offsets that are not two numbers");
  const auto count = count_of(entry.shape);
  if (!count) fail("has a shape whose elements no 64 bits count");
  HeaderTensor tensor{.name = {},
                      .type = &type_of(entry, path),
                      .shape = {},
                      .count_elems = *count,
                      .begin = entry.offsets[0],
                      .end = entry.offsets[1]};
  tensor.name = std::move(entry.name);
  tensor.shape = std::move(entry.shape);
  check_place(tensor, data_bytes, path);
  return tensor;
}

// Every byte of the data is one tensor's.
void check_cover(const std::vector<HeaderTensor>& tensors, std::uint64_t data_bytes,
                 const std::string& path) {
  std::vector<const HeaderTensor*> order;
  order.reserve(tensors.size());
  for (const HeaderTensor& tensor : tensors) order.push_back(&tensor);
  std::ranges::sort(order, [](const HeaderTensor* a, const HeaderTensor* b) {
    return std::pair(a->begin, a->end) < std::pair(b->begin, b->end);
  });
  std::uint64_t covered = 0;
  const HeaderTensor* last = nullptr;
  for (const HeaderTensor* tensor : order) {
    if (tensor->begin > covered) {
      refuse_tensor(path, tensor->name,
                    fmt::format("begins at byte {}, which leaves a hole behind byte {}",
                                tensor->begin, covered));
    }
    if (tensor->begin < covered) {
      refuse_tensor(path, tensor->name, fmt::format("overlaps {}", in_quotes(last->name)));
    }
    covered = tensor->end;
    last = tensor;
  }
  if (covered != data_bytes) {
    refuse(path, fmt::format("the file has {} bytes behind its last tensor", data_bytes - covered));
  }
}

void check_metadata(std::vector<std::pair<std::string, std::string>>& metadata,
                    const std::string& path) {
  std::ranges::sort(metadata);
  const auto same = [](const auto& a, const auto& b) { return a.first == b.first; };
  const auto twice = std::ranges::adjacent_find(metadata, same);
  if (twice != metadata.end()) {
    refuse(path, fmt::format("__metadata__ has {} twice", in_quotes(twice->first)));
  }
}

}  // namespace

std::optional<std::uint64_t> count_of(const std::vector<std::uint64_t>& shape) {
  std::uint64_t count = 1;
  for (const std::uint64_t extent : shape) {
    if (extent != 0 && count > kMost / extent) return std::nullopt;
    count *= extent;
  }
  return count;
}

Header parse_header(std::string_view json, std::uint64_t data_bytes, const std::string& path) {
  HeaderText text = read_header_json(json, path);
  check_metadata(text.metadata, path);
  std::ranges::sort(text.entries, {}, &HeaderEntry::name);
  const auto twice = std::ranges::adjacent_find(text.entries, {}, &HeaderEntry::name);
  if (twice != text.entries.end()) refuse_tensor(path, twice->name, "is there twice");
  Header header;
  header.metadata = std::move(text.metadata);
  header.tensors.reserve(text.entries.size());
  for (HeaderEntry& entry : text.entries) {
    header.tensors.push_back(checked(std::move(entry), data_bytes, path));
  }
  check_cover(header.tensors, data_bytes, path);
  return header;
}

}  // namespace strata::safetensors

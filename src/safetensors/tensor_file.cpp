#include "safetensors/tensor_file.hpp"

#include <fmt/format.h>

#include <bit>
#include <cstring>

#include "safetensors/message_text.hpp"

namespace strata::safetensors {

static_assert(std::endian::native == std::endian::little, "the format is little endian");

namespace {

std::uint64_t header_length(const OpenedFile& file, const std::string& path) {
  const std::uint64_t size = file.identity.size_bytes;
  if (size < kLengthBytes) {
    refuse(path, fmt::format("the file has {} bytes, too few for a safetensors file", size));
  }
  std::array<std::byte, kLengthBytes> bytes{};
  read_exactly(file.descriptor.get(), bytes, 0, path);
  const auto length = std::bit_cast<std::uint64_t>(bytes);
  if (length > kMostHeaderBytes) {
    refuse(path, fmt::format("the header claims {} bytes, more than the format's limit of {}",
                             length, kMostHeaderBytes));
  }
  if (length > size - kLengthBytes) {
    refuse(path, fmt::format("the header claims {} bytes, more than the file has", length));
  }
  return length;
}

}  // namespace

TensorFile open_tensor_file(const std::string& path) {
  const OpenedFile file = open_to_read(path);
  const std::uint64_t length = header_length(file, path);
  std::string json(length, '\0');
  read_exactly(file.descriptor.get(), std::as_writable_bytes(std::span(json)), kLengthBytes, path);
  const std::uint64_t data_begin = kLengthBytes + length;
  return {.path = path,
          .identity = file.identity,
          .header = parse_header(json, file.identity.size_bytes - data_begin, path),
          .data_begin = data_begin};
}

}  // namespace strata::safetensors

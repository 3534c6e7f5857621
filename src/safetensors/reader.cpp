#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>

#include "safetensors/directory.hpp"
#include "safetensors/message_text.hpp"
#include "strata/element_ops.hpp"
#include "strata/safetensors.hpp"

namespace strata::safetensors {
namespace {

// Elements of 16 bits that are read at a time.
constexpr std::uint64_t kPieceElems = std::uint64_t{1} << 19;

std::string shape_text(const std::vector<std::uint64_t>& shape) {
  constexpr std::size_t kMostShown = 8;
  if (shape.size() > kMostShown) return fmt::format("{} extents", shape.size());
  return fmt::format("({})", fmt::join(shape, ", "));
}

}  // namespace

struct Reader::Impl {
  Directory directory;
  std::uint32_t open_file = 0;
  Descriptor descriptor;  // of open_file, if it is open
  std::vector<std::byte> piece;

  int descriptor_of(std::uint32_t file) {
    if (descriptor && open_file == file) return descriptor.get();
    const std::string& path = directory.paths[file];
    OpenedFile opened = open_to_read(path);
    if (opened.identity != directory.identities[file]) {
      refuse(path, "the file has changed since its header was read");
    }
    descriptor = std::move(opened.descriptor);
    open_file = file;
    return descriptor.get();
  }
};

Reader Reader::open(const std::string& directory) {
  auto impl = std::make_unique<Impl>();
  impl->directory = read_directory(directory);
  return Reader(std::move(impl));
}

Reader::Reader(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Reader::Reader(Reader&&) noexcept = default;
Reader& Reader::operator=(Reader&&) noexcept = default;
Reader::~Reader() = default;

const std::vector<Tensor>& Reader::tensors() const { return impl_->directory.tensors; }

const std::vector<std::string>& Reader::files() const { return impl_->directory.paths; }

const std::vector<std::string>& Reader::notices() const { return impl_->directory.notices; }

const Tensor* Reader::find(std::string_view name) const {
  const auto at = std::ranges::lower_bound(tensors(), name, {}, &Tensor::name);
  return at != tensors().end() && at->name == name ? &*at : nullptr;
}

std::vector<std::string> Reader::match(std::span<const Expected> expected) const {
  std::vector<std::string> missing;
  std::vector<std::string_view> known;
  for (const Expected& one : expected) {
    known.emplace_back(one.name);
    const Tensor* tensor = find(one.name);
    if (tensor == nullptr) {
      missing.push_back(one.name);
      continue;
    }
    const auto fail = [&](std::string_view what) {
      throw Error(ErrorCode::config, fmt::format("tensor {} {}", in_quotes(one.name), what),
                  {.path = files()[tensor->file]});
    };
    if (tensor->shape != one.shape) {
      fail(fmt::format("has the shape {}, the model needs {}; check the model's configuration",
                       shape_text(tensor->shape), shape_text(one.shape)));
    }
    if (!tensor->dtype) {
      fail(fmt::format("has elements of {}; save the weights as F32, BF16 or F16", tensor->type));
    }
  }
  if (!missing.empty()) {
    throw Error(ErrorCode::config,
                fmt::format("the files do not hold {}, which the model needs; check that they are "
                            "of this model",
                            listed(missing)),
                {.path = files().empty() ? "" : files().front()});
  }
  std::ranges::sort(known);
  std::vector<std::string> extra;
  for (const Tensor& tensor : tensors()) {
    if (!std::ranges::binary_search(known, tensor.name)) extra.push_back(tensor.name);
  }
  return extra;
}

void Reader::read(const Tensor& tensor, std::uint64_t offset_elems, std::span<float> values) {
  const std::uint64_t count = tensor.count_elems;
  if (!tensor.dtype || offset_elems > count || values.size() > count - offset_elems) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("elements [{}, +{}) of tensor {}, which has {} of {}", offset_elems,
                            values.size(), in_quotes(tensor.name), count, tensor.type));
  }
  const int fd = impl_->descriptor_of(tensor.file);
  const std::string& path = files()[tensor.file];
  const std::uint64_t width = size_of(*tensor.dtype).value;
  const std::uint64_t begin = tensor.offset_bytes + offset_elems * width;
  if (*tensor.dtype == DType::fp32) {
    read_exactly(fd, std::as_writable_bytes(values), begin, path);
    return;
  }
  impl_->piece.resize(kPieceElems * width);
  for (std::uint64_t at = 0; at < values.size(); at += kPieceElems) {
    const std::span<float> some = values.subspan(at, std::min(kPieceElems, values.size() - at));
    const auto raw = std::span(impl_->piece).first(some.size() * width);
    read_exactly(fd, raw, begin + at * width, path);
    convert(some.data(), DType::fp32, raw.data(), *tensor.dtype, some.size());
  }
}

}  // namespace strata::safetensors

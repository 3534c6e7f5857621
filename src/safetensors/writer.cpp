#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cmath>

#include "base/check.hpp"
#include "safetensors/destination.hpp"
#include "safetensors/file.hpp"
#include "safetensors/index.hpp"
#include "safetensors/message_text.hpp"
#include "safetensors/write_plan.hpp"
#include "strata/element_ops.hpp"
#include "strata/safetensors.hpp"

namespace strata::safetensors {
namespace {

// Elements of 16 bits that are written at a time.
constexpr std::uint64_t kPieceElems = std::uint64_t{1} << 19;

// The smallest magnitude that rounds to infinity: half a unit of the last place above the largest.
float overflow_of(DType dtype) { return dtype == DType::fp16 ? 65520.0F : 0x1.FFp127F; }

bool is_name(const std::string& name) {
  return !name.empty() && name != "." && name != ".." && name.find('/') == name.npos &&
         name.find('\0') == name.npos;
}

void check_companions(const WriterOptions& options, const WritePlan& plan) {
  for (const Companion& companion : options.companions) {
    const bool taken =
        std::ranges::any_of(plan.files, [&](const auto& f) { return f.name == companion.name; });
    if (!is_name(companion.name) || taken || companion.name == kIndexFile) {
      throw Error(ErrorCode::invalid_argument,
                  fmt::format("{} cannot be the name of a file beside the tensors",
                              in_quotes(companion.name)));
    }
  }
}

}  // namespace

struct Writer::Impl {
  std::string directory;
  std::vector<OutputTensor> tensors;
  WriterOptions options;
  WritePlan plan;

  std::vector<std::string> made;  // paths of temporary files, by create()
  bool made_directory = false;
  bool created = false;
  bool committed = false;

  std::uint32_t open_file = 0;
  Descriptor descriptor;  // of open_file, if it is open
  std::vector<std::byte> piece;
  std::uint64_t written = 0;

  std::string partial_path(const std::string& name) const {
    return partial(directory + "/" + name);
  }

  void make(const std::string& name, std::span<const char> head, std::uint64_t size) {
    make_file(partial_path(name), head, size);
    made.push_back(partial_path(name));
  }

  // What was written through a descriptor is synced before it is closed, so that no error of
  // writing back is lost.
  void close_file() {
    if (!descriptor) return;
    const std::string path = partial_path(plan.files[open_file].name);
    sync_file(descriptor.get(), path);
    const int errnum = descriptor.close();
    if (errnum != 0) throw Error(io_error_code(errnum), "cannot close the file", {errnum, path});
  }

  int descriptor_of(std::uint32_t file) {
    if (descriptor && open_file == file) return descriptor.get();
    close_file();
    const PlannedFile& planned = plan.files[file];
    const std::string path = partial_path(planned.name);
    descriptor = Descriptor(::open(path.c_str(), O_WRONLY | O_CLOEXEC));
    struct stat status {};
    const bool as_planned = descriptor && ::fstat(descriptor.get(), &status) == 0 &&
                            static_cast<std::uint64_t>(status.st_size) == planned.size_bytes;
    if (!as_planned) {
      const int errnum = descriptor ? 0 : errno;
      descriptor = Descriptor();
      throw Error(ErrorCode::io,
                  "the file that the first rank has made is not there; export to a file system "
                  "that all ranks share",
                  {.errnum = errnum, .path = path});
    }
    open_file = file;
    return descriptor.get();
  }

  void check_range(std::size_t tensor, std::uint64_t offset, std::uint64_t count) const {
    const bool fits = tensor < tensors.size() && offset <= plan.tensors[tensor].count_elems &&
                      count <= plan.tensors[tensor].count_elems - offset;
    if (fits) return;
    throw Error(ErrorCode::invalid_argument,
                fmt::format("elements [{}, +{}) of output tensor {} of {} are outside of it",
                            offset, count, tensor, tensors.size()));
  }

  void check_values(const OutputTensor& tensor, std::span<const float> values) const {
    const float limit = overflow_of(tensor.dtype);
    for (const float value : values) {
      if (std::fabs(value) < limit || !std::isfinite(value)) continue;
      throw Error(ErrorCode::config,
                  fmt::format("tensor {} has the value {}, which {} cannot hold; export another "
                              "type",
                              in_quotes(tensor.name), value, name_of(tensor.dtype)),
                  {.path = directory});
    }
  }

  void write_rounded(int fd, const OutputTensor& tensor, std::span<const float> values,
                     std::uint64_t begin) {
    const std::string path = partial_path(plan.files[open_file].name);
    const std::uint64_t width = size_of(tensor.dtype).value;
    check_values(tensor, values);
    piece.resize(kPieceElems * width);
    for (std::uint64_t at = 0; at < values.size(); at += kPieceElems) {
      const auto some = values.subspan(at, std::min(kPieceElems, values.size() - at));
      convert(piece.data(), tensor.dtype, some.data(), DType::fp32, some.size());
      write_exactly(fd, std::span(piece).first(some.size() * width), begin + at * width, path);
    }
  }
};

Writer::Writer(std::string directory, std::vector<OutputTensor> tensors, WriterOptions options)
    : impl_(std::make_unique<Impl>()) {
  impl_->directory = std::move(directory);
  impl_->tensors = std::move(tensors);
  impl_->options = std::move(options);
  impl_->plan = plan_files(impl_->tensors, impl_->options.most_file_bytes);
  check_companions(impl_->options, impl_->plan);
}

Writer::Writer(Writer&&) noexcept = default;

Writer::~Writer() {
  if (!impl_ || impl_->committed) return;
  for (const std::string& path : impl_->made) ::unlink(path.c_str());
  if (impl_->made_directory) ::rmdir(impl_->directory.c_str());  // if nobody else uses it
}

void Writer::check_destination(const std::string& directory) {
  safetensors::check_destination(directory);
}

void Writer::create() {
  Impl& w = *impl_;
  if (w.created) throw Error(ErrorCode::invalid_argument, "the export was created before");
  w.made_directory = make_destination(w.directory);
  for (const PlannedFile& file : w.plan.files) w.make(file.name, file.head, file.size_bytes);
  for (const Companion& companion : w.options.companions) {
    w.make(companion.name, companion.text, companion.text.size());
  }
  if (!w.plan.index.empty()) {
    w.make(std::string(kIndexFile), w.plan.index, w.plan.index.size());
  }
  w.created = true;
}

void Writer::write(std::size_t tensor, std::uint64_t offset_elems, std::span<const float> values) {
  Impl& w = *impl_;
  w.check_range(tensor, offset_elems, values.size());
  if (values.empty()) return;
  const OutputTensor& spec = w.tensors[tensor];
  const PlannedTensor& place = w.plan.tensors[tensor];
  const int fd = w.descriptor_of(place.file);
  const std::uint64_t begin = place.offset_bytes + offset_elems * size_of(spec.dtype).value;
  if (spec.dtype == DType::fp32) {
    write_exactly(fd, std::as_bytes(values), begin, w.partial_path(w.plan.files[place.file].name));
  } else {
    w.write_rounded(fd, spec, values, begin);
  }
  w.written += values.size();
}

void Writer::flush() { impl_->close_file(); }

std::uint64_t Writer::written_elems() const { return impl_->written; }

std::uint64_t Writer::count_elems() const {
  std::uint64_t count = 0;
  for (const PlannedTensor& tensor : impl_->plan.tensors) count += tensor.count_elems;
  return count;
}

void Writer::commit() {
  Impl& w = *impl_;
  if (!w.created || w.committed) {
    throw Error(ErrorCode::invalid_argument, "there is no created export to commit");
  }
  flush();
  publish(w.directory, file_names());
  w.committed = true;
}

std::vector<std::string> Writer::file_names() const {
  const Impl& w = *impl_;
  std::vector<std::string> names;
  for (const Companion& companion : w.options.companions) names.push_back(companion.name);
  for (const PlannedFile& file : w.plan.files) names.push_back(file.name);
  if (!w.plan.index.empty()) names.emplace_back(kIndexFile);
  return names;
}

}  // namespace strata::safetensors

#include "safetensors/directory.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

#include "safetensors/index.hpp"
#include "safetensors/message_text.hpp"

namespace strata::safetensors {
namespace {

namespace fs = std::filesystem;

bool is_there(const fs::path& path) {
  std::error_code ignored;
  return fs::exists(path, ignored);
}

Tensor tensor_of(HeaderTensor tensor, std::uint32_t file, std::uint64_t data_begin) {
  return {.name = std::move(tensor.name),
          .type = tensor.type->word,
          .dtype = tensor.type->dtype,
          .shape = std::move(tensor.shape),
          .count_elems = tensor.count_elems,
          .file = file,
          .offset_bytes = data_begin + tensor.begin};
}

// Adds a file; `takes(name)` says whether its tensor of this name counts. Returns the names of the
// others.
template <class Takes>
std::vector<std::string> add_file(Directory& all, const std::string& path, Takes&& takes) {
  TensorFile file = open_tensor_file(path);
  const auto number = static_cast<std::uint32_t>(all.paths.size());
  std::vector<std::string> others;
  for (HeaderTensor& tensor : file.header.tensors) {
    if (takes(tensor.name)) {
      all.tensors.push_back(tensor_of(std::move(tensor), number, file.data_begin));
    } else {
      others.push_back(std::move(tensor.name));
    }
  }
  all.paths.push_back(path);
  all.identities.push_back(file.identity);
  return others;
}

void notice_unlisted_files(const fs::path& directory, const Index& index, Directory& all) {
  std::vector<std::string> unlisted;
  std::error_code error;
  for (fs::directory_iterator at(directory, error), end; !error && at != end; at.increment(error)) {
    const std::string name = at->path().filename().string();
    const bool is_shard = name.starts_with("model") && name.ends_with(".safetensors");
    if (is_shard && !std::ranges::binary_search(index.files, name)) unlisted.push_back(name);
  }
  if (unlisted.empty()) return;
  std::ranges::sort(unlisted);
  all.notices.push_back(fmt::format("the index does not name {}, which is not read ({})",
                                    listed(unlisted), directory.string()));
}

void check_all_found(const Index& index, const Directory& all, const std::string& index_path) {
  std::vector<std::string> missing;
  for (const IndexEntry& entry : index.entries) {
    if (!std::ranges::binary_search(all.tensors, entry.tensor, {}, &Tensor::name)) {
      missing.push_back(entry.tensor);
    }
  }
  if (missing.empty()) return;
  refuse(index_path,
         fmt::format("the index puts {} into files that do not hold them", listed(missing)));
}

Directory read_shards(const fs::path& directory) {
  const std::string index_path = (directory / kIndexFile).string();
  const Index index = parse_index(read_text(index_path, kMostHeaderBytes), index_path);
  Directory all;
  for (std::uint32_t file = 0; file < index.files.size(); ++file) {
    const std::string path = (directory / index.files[file]).string();
    const auto others = add_file(all, path, [&](const std::string& name) {
      const auto at = std::ranges::lower_bound(index.entries, name, {}, &IndexEntry::tensor);
      return at != index.entries.end() && at->tensor == name && at->file == file;
    });
    if (!others.empty()) {
      all.notices.push_back(fmt::format("{} holds {}, which the index does not look for there",
                                        path, listed(others)));
    }
  }
  std::ranges::sort(all.tensors, {}, &Tensor::name);
  check_all_found(index, all, index_path);
  notice_unlisted_files(directory, index, all);
  return all;
}

[[noreturn]] void fail_nothing_there(const fs::path& directory) {
  std::error_code ignored;
  const bool is_directory = fs::is_directory(directory, ignored);
  const bool pickled = is_there(directory / "pytorch_model.bin") ||
                       is_there(directory / "pytorch_model.bin.index.json");
  throw Error(is_directory ? ErrorCode::config : ErrorCode::io,
              !is_directory
                  ? "there is no such directory of weights; check the name"
                  : fmt::format("the directory has neither {} nor {}; {}", kSingleFile, kIndexFile,
                                pickled ? "save its pytorch_model.bin anew with "
                                          "save_pretrained(..., safe_serialization=True)"
                                        : "name one that save_pretrained() wrote"),
              {.path = directory.string()});
}

}  // namespace

Directory read_directory(const std::string& directory) {
  const fs::path root(directory);
  const bool indexed = is_there(root / kIndexFile);
  if (is_there(root / kSingleFile)) {
    Directory all;
    add_file(all, (root / kSingleFile).string(), [](const std::string&) { return true; });
    if (indexed) {
      all.notices.push_back(
          fmt::format("{} is read, {} beside it is not ({})", kSingleFile, kIndexFile, directory));
    }
    return all;
  }
  if (!indexed) fail_nothing_there(root);
  return read_shards(root);
}

}  // namespace strata::safetensors

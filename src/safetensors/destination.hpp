// The directory that an export goes to, and the names in it: made, checked, made durable.
#pragma once

#include <span>
#include <string>

namespace strata::safetensors {

// What a file is called until all of it is there.
std::string partial(const std::string& path);

// See Writer::check_destination.
void check_destination(const std::string& directory);

// check_destination(), and makes the directory if it is missing; returns whether it was. Throws
// Error: config, io.
bool make_destination(const std::string& directory);

// Makes a new file of this size with room on the disk for all of it, `head` at its begin, and
// brings both to the disk. A file that it could not finish is removed again. Throws Error: config
// when it exists, no_space, io.
void make_file(const std::string& path, std::span<const char> head, std::uint64_t size_bytes);

// Renames partial(name) to name for each, in their order; the names are durable on return. When one
// cannot be renamed those before it are removed. Throws Error(io).
void publish(const std::string& directory, std::span<const std::string> names);

}  // namespace strata::safetensors

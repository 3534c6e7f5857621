// The directories that data files rest in: made with mode 0700 below a root that the user named,
// walked component by component so that no symbolic link below the root is followed.
#pragma once

#include <string>

namespace strata::files {

// See BlockIo::prepare_directory.
void prepare_directory(const std::string& root, const std::string& directory, bool allow_tmpfs);

// See BlockIo::remove_directory.
void remove_directory(const std::string& root, const std::string& directory) noexcept;

}  // namespace strata::files

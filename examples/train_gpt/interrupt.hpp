// Ctrl-C and SIGTERM ask for an end after the current step; a second one ends the process at once.
// SIGPIPE is ignored, so that a closed stdout shows as a failed write.
// Thread: install() once at the start; requested() any.
#pragma once

namespace train_gpt::interrupt {

// Throws std::system_error.
void install();

bool requested();

}  // namespace train_gpt::interrupt

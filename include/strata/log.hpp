// Where the library's messages go. The library never prints: a session is handed a sink and
// writes warnings and notices ("RLIMIT_MEMLOCK is 8 MiB: host slabs stay unpinned") to it.
// Thread: a sink may be called from any thread, one call at a time per session.
#pragma once

#include <functional>
#include <string_view>

namespace strata {

enum class LogLevel { info, warning };

using LogSink = std::function<void(LogLevel, std::string_view message)>;

}  // namespace strata

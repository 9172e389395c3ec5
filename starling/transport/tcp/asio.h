// Standalone Asio, as much of it as the edges and the command's HTTP server need. Private to
// these, so no other code pays for it.
#pragma once

#define ASIO_STANDALONE
#define ASIO_NO_DEPRECATED
// One thread runs the handlers, and the queue's mutex orders the posts of other threads. Fences are
// not needed, and the thread sanitizer does not understand them.
#define ASIO_DISABLE_FENCED_BLOCK
#include <asio/executor_work_guard.hpp>
#include <asio/io_context.hpp>
#include <asio/ip/tcp.hpp>
#include <asio/post.hpp>
#include <asio/read.hpp>
#include <asio/read_until.hpp>
#include <asio/signal_set.hpp>
#include <asio/steady_timer.hpp>
#include <asio/write.hpp>

namespace starling::tcp {

using Tcp = asio::ip::tcp;

}  // namespace starling::tcp

#include "cli/http.h"

#include <chrono>
#include <csignal>
#include <memory>
#include <utility>

#include <fmt/format.h>

#include "starling/core/error.h"
#include "starling/transport/tcp/asio.h"

namespace starling::cli {

namespace {

using tcp::Tcp;

constexpr std::size_t kMostHead = 8192;  // bytes of a request
constexpr auto kLongest = std::chrono::seconds(10);
constexpr int kMostConnections = 64;

// One request and its answer, then the end of the connection.
class Session : public std::enable_shared_from_this<Session> {
 public:
  Session(Tcp::socket socket, const HttpServer& server, std::shared_ptr<void> place)
      : socket_(std::move(socket)),
        timer_(socket_.get_executor()),
        server_(server),
        place_(std::move(place)) {}

  void begin() {
    timer_.expires_after(kLongest);
    timer_.async_wait([self = shared_from_this()](const asio::error_code& ended) {
      if (!ended) self->close();
    });
    asio::async_read_until(socket_, asio::dynamic_buffer(head_, kMostHead), "\r\n\r\n",
                           [self = shared_from_this()](const asio::error_code& error, std::size_t) {
                             error ? self->close() : self->write();
                           });
  }

 private:
  void write() {
    answer_ = http_answer(head_, server_.page);
    asio::async_write(socket_, asio::buffer(answer_),
                      [self = shared_from_this()](const asio::error_code&, std::size_t) {
                        asio::error_code none;
                        self->socket_.shutdown(Tcp::socket::shutdown_send, none);
                        self->close();
                      });
  }
  void close() {
    timer_.cancel();
    asio::error_code none;
    socket_.close(none);
  }

  Tcp::socket socket_;
  asio::steady_timer timer_;
  const HttpServer& server_;
  const std::shared_ptr<void> place_;  // among kMostConnections
  std::string head_, answer_;
};

// A connection beyond the most is closed at once.
void accept(Tcp::acceptor& acceptor, const HttpServer& server, const std::shared_ptr<int>& count) {
  acceptor.async_accept([&acceptor, &server, count](const asio::error_code& error, Tcp::socket socket) {
    if (error == asio::error::operation_aborted) return;
    if (!error && *count < kMostConnections) {
      ++*count;
      const std::shared_ptr<void> place(nullptr, [count](void*) { --*count; });
      std::make_shared<Session>(std::move(socket), server, place)->begin();
    }
    accept(acceptor, server, count);
  });
}

}  // namespace

int HttpServer::serve() const {
  asio::io_context context(1);
  Tcp::acceptor acceptor(context);
  try {
    const Tcp::endpoint end(asio::ip::make_address(host), port);
    acceptor.open(end.protocol());
    acceptor.set_option(Tcp::acceptor::reuse_address(true));
    acceptor.bind(end);
    acceptor.listen();
  } catch (const asio::system_error& error) {
    throw Error(fmt::format("{}:{}: cannot be listened at: {}", host, port, error.code().message()));
  }
  int ended_by = 0;
  asio::signal_set signals(context, SIGINT, SIGTERM);
  signals.async_wait([&](const asio::error_code& error, int signal) {
    if (error) return;
    ended_by = signal;
    context.stop();
  });
  accept(acceptor, *this, std::make_shared<int>(0));
  ready(acceptor.local_endpoint().port());
  context.run();
  return ended_by;
}

}  // namespace starling::cli

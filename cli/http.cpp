#include "cli/http.h"

#include <chrono>
#include <csignal>
#include <list>
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
constexpr std::size_t kMostConnections = 64;
constexpr auto kPauseAfterError = std::chrono::milliseconds(100);  // as without a descriptor left

// One request and its answer, then the end of the connection.
class Session : public std::enable_shared_from_this<Session> {
 public:
  Session(Tcp::socket socket, const HttpServer& server, bool local)
      : socket_(std::move(socket)), timer_(socket_.get_executor()), server_(server), local_(local) {}

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
  void close() {
    timer_.cancel();
    asio::error_code none;
    socket_.close(none);
  }

 private:
  void write() {
    answer_ = http_answer(head_, local_, server_.page);
    asio::async_write(socket_, asio::buffer(answer_),
                      [self = shared_from_this()](const asio::error_code&, std::size_t) {
                        asio::error_code none;
                        self->socket_.shutdown(Tcp::socket::shutdown_send, none);
                        self->close();
                      });
  }

  Tcp::socket socket_;
  asio::steady_timer timer_;
  const HttpServer& server_;
  const bool local_;  // the server is for this machine
  std::string head_, answer_;
};

class Sessions {
 public:
  Sessions(Tcp::acceptor& acceptor, const HttpServer& server)
      : acceptor_(acceptor),
        pause_(acceptor.get_executor()),
        server_(server),
        local_(acceptor.local_endpoint().address().is_loopback()) {}

  void accept() {
    acceptor_.async_accept([this](const asio::error_code& error, Tcp::socket socket) {
      if (!error) {
        begin(std::move(socket));
        return accept();
      }
      pause_.expires_after(kPauseAfterError);
      pause_.async_wait([this](const asio::error_code&) { accept(); });
    });
  }

 private:
  // If there are too many, the oldest ends: those that say nothing keep nobody out.
  void begin(Tcp::socket socket) {
    std::erase_if(sessions_, [](const auto& session) { return session.expired(); });
    if (sessions_.size() >= kMostConnections) {
      if (const auto oldest = sessions_.front().lock()) oldest->close();
      sessions_.pop_front();
    }
    const auto session = std::make_shared<Session>(std::move(socket), server_, local_);
    sessions_.push_back(session);
    session->begin();
  }

  Tcp::acceptor& acceptor_;
  asio::steady_timer pause_;
  const HttpServer& server_;
  const bool local_;
  std::list<std::weak_ptr<Session>> sessions_;  // the oldest first
};

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
  Sessions sessions(acceptor, *this);
  sessions.accept();
  ready(acceptor.local_endpoint().port());
  context.run();
  return ended_by;
}

}  // namespace starling::cli

#include "starling/transport/tcp/link.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

namespace starling::tcp {
namespace {

using std::chrono::milliseconds;

constexpr Duration kShortestPause = milliseconds(10);
constexpr Duration kLongestRedialPause = milliseconds(500);
constexpr Duration kPauseWhenLost = milliseconds(1000);
constexpr Duration kRefusedFor = milliseconds(50);
constexpr Duration kStood =
    milliseconds(1000);  // a connection that breaks sooner is redialled after a longer pause

}  // namespace

Link::Link(LocalEnd& local, AddressBook& book, int peer)
    : local_(local),
      book_(book),
      peer_(peer),
      claim_(local.io),
      pause_(kShortestPause),
      retry_(local.io),
      deadline_(local.io) {}

void Link::open() {
  if (std::exchange(wanted_, true) || finishing_) return;
  if (!address_) book_.refresh(peer_);
  seek(true);
  if (caller_) welcome(std::exchange(caller_, nullptr));
}

void Link::reset(const std::string& reason) {
  if (!connection_) return;
  connection_->close();
  down(reason);
}

void Link::send(std::uint64_t connection, const Frame& frame, Payload payload) {
  if (connection_ && connection == number_) connection_->send(frame, std::move(payload));
}

void Link::cancel(FrameType type, std::uint64_t round, std::uint32_t block) {
  if (connection_) connection_->cancel(type, round, block);
}

void Link::finish(std::function<void()> done) {
  finishing_ = true;
  number_ = 0;
  retry_.cancel();
  deadline_.cancel();
  claim_.cancel();
  if (dial_) dial_->close();
  dial_ = nullptr;
  if (caller_) caller_->close();
  caller_ = nullptr;
  if (!connection_) return done();
  connection_->finish(std::move(done));
}

void Link::close() {
  if (connection_) connection_->close();
  connection_ = nullptr;
}

void Link::found(const Tcp::endpoint& address) {
  const bool first = !address_;
  address_ = address;
  if (std::exchange(forged_, false) && is_seeking()) wait_for_it();
  if (first && wanted_ && !connection_ && !finishing_) {
    pause_ = kShortestPause;
    try_now();
  }
}

void Link::ended(const std::string& how) { has_ended("it " + how); }

void Link::forged() {
  if (address_ || std::exchange(forged_, true)) return;
  trouble_ = no_address();
  if (is_seeking()) wait_for_it();
}

void Link::accepted(std::shared_ptr<Acceptance> caller) {
  if (finishing_) return caller->close();
  if (connection_) return claimed(std::move(caller));
  if (wanted_) return welcome(caller);
  if (caller_) caller_->close();
  caller_ = std::move(caller);
}

void Link::welcome(const std::shared_ptr<Acceptance>& caller) {
  caller->welcome([this](ProvenStream stream) {
    if (!finishing_) up(std::move(stream));
  });
}

// Either the peer has lost its end of the connection, or a second process has its rank and token.
void Link::claimed(std::shared_ptr<Acceptance> caller) {
  const Time now = Clock::now();
  const Duration patience = local_.timeouts.silent / 2;
  if (now - connection_->heard() >= patience) return welcome(caller);
  const bool waits = caller_ != nullptr;
  if (waits) caller_->close();
  caller_ = std::move(caller);
  if (waits) return;
  claim_.expires_after(patience);
  claim_.async_wait([this, now](const asio::error_code& cancelled) {
    if (!cancelled && caller_ && !finishing_) decide_claim(now);
  });
}

// Bytes that were on their way when the peer's end broke come at once. A live peer sends
// heartbeats.
void Link::decide_claim(Time since) {
  const auto caller = std::exchange(caller_, nullptr);
  if (!connection_ || connection_->heard() - since <= local_.timeouts.silent / 4) return welcome(caller);
  if (!std::exchange(claim_refused_, true))
    local_.warn(
        fmt::format("tcp transport: worker {} refused {}: it proved to be worker {}, which is connected: "
                    "was the run started twice?",
                    local_.identity.rank, caller->name(), peer_));
  caller->close();
}

std::string Link::no_address() const {
  if (!forged_) return "its address is not in the store";
  return fmt::format("its address in the store is not signed with this worker's token: {}", kSameToken);
}

void Link::seek(bool at_once) {
  refused_since_.reset();
  trouble_ = no_address();
  wait_for_it();
  if (at_once && dials()) {
    try_now();
  } else {
    try_soon();
  }
}

void Link::wait_for_it() {
  const Timeouts& within = local_.timeouts;
  const Duration patience = met_      ? within.silent
                            : forged_ ? std::min(within.meet, within.silent)
                                      : within.meet;
  deadline_.expires_after(patience);
  deadline_.async_wait([this, patience](const asio::error_code& cancelled) {
    if (!cancelled && is_seeking())
      lose(fmt::format("no connection within {:.1f} s: {}", seconds(patience), trouble_));
  });
}

void Link::try_soon() {
  retry_.expires_after(lost_ ? kPauseWhenLost : pause_);
  pause_ = std::min(2 * pause_, kLongestRedialPause);
  retry_.async_wait([this](const asio::error_code& cancelled) {
    if (!cancelled && !connection_ && !finishing_) try_now();
  });
}

void Link::try_now() {
  if (dial_) return;
  if (ended_ && !dials()) return;  // another process of this rank will dial by itself
  if (!address_) return try_soon();
  if (lost_) book_.refresh(peer_);
  const auto purpose = dials() ? Dial::Purpose::connect : Dial::Purpose::probe;
  dial_ = std::make_shared<Dial>(
      local_, peer_, purpose, [this](Dial::Outcome outcome, ProvenStream stream, const std::string& reason) {
        dial_ = nullptr;
        if (!finishing_) tried(outcome, std::move(stream), reason);
      });
  dial_->start(*address_);
}

void Link::tried(Dial::Outcome outcome, ProvenStream stream, const std::string& reason) {
  if (connection_) return;  // the peer has dialled by itself meanwhile
  if (outcome == Dial::Outcome::connected) return up(std::move(stream));
  trouble_ = outcome == Dial::Outcome::listening ? "it listens but does not dial" : reason;
  if (outcome != Dial::Outcome::refused) {
    refused_since_.reset();
  } else if (!refused_since_) {
    refused_since_ = Clock::now();
  } else if (Clock::now() - *refused_since_ >= kRefusedFor) {
    has_ended("its port refuses, its process has ended");
  }
  try_soon();
}

void Link::up(ProvenStream stream) {
  if (connection_) {
    connection_->close();
    connection_ = nullptr;
    number_ = 0;
    local_.handler->disconnected(peer_, "it connected again");
  }
  retry_.cancel();
  deadline_.cancel();
  met_ = true;
  lost_ = ended_ = false;
  up_since_ = Clock::now();
  claim_refused_ = false;
  connection_ = std::make_shared<Connection>(local_, std::move(stream), peer_,
                                             [this](const std::string& why) { down(why); });
  number_ = ++connections_;
  local_.handler->connected(peer_);
  connection_->start();
}

void Link::down(const std::string& reason) {
  connection_ = nullptr;
  number_ = 0;
  const bool stood = Clock::now() - up_since_ >= kStood;
  if (stood) pause_ = kShortestPause;
  local_.handler->disconnected(peer_, reason);
  seek(stood);
  if (!caller_) return;
  claim_.cancel();
  welcome(std::exchange(caller_, nullptr));
}

void Link::lose(const std::string& reason) {
  lost_ = true;
  const std::string where = address_ ? fmt::format(" at {}", to_string(*address_)) : "";
  local_.handler->lost(peer_, fmt::format("worker {}{}: {}", peer_, where, reason));
}

void Link::has_ended(const std::string& reason) {
  if (!wanted_ || connection_ || finishing_ || std::exchange(ended_, true)) return;
  if (!lost_) lose(reason);
  local_.handler->ended(peer_);
}

}  // namespace starling::tcp

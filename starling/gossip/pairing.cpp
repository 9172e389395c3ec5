#include "starling/gossip/pairing.h"

#include <algorithm>

#include "starling/core/random.h"

namespace starling {

void Pairing::want(int peer) {
  if (paused_) return;
  const Peer& p = peers_[peer];
  if (!p.up || p.silent || due_.size() == kMostDue) {
    ++statistics_.dropped;
    return;
  }
  due_.push_back(peer);
  proceed();
}

void Pairing::resume() {
  paused_ = declines_ = false;
  proceed();
}

void Pairing::up(int peer) {
  peers_[peer].up = true;
  peers_[peer].silent = false;
}

void Pairing::down(int peer) {
  peers_[peer].up = false;
  const auto gone = std::erase(due_, peer);
  statistics_.dropped += gone;
  if (asking_ && asking_->peer == peer) {
    ++statistics_.dropped;
    asking_.reset();
    proceed();
  }
}

// Starts the first averaging that is due.
void Pairing::proceed() {
  if (!idle() || paused_ || resting_ || due_.empty()) return;
  const int peer = due_.front();
  due_.pop_front();
  asking_ = Ask{peer, next_number(peer, peers_[peer].number, true)};
  ++statistics_.asked;
  answer_alarm_ = wake(std::clamp(Patience::kAnswers * peers_[peer].answers, patience_.answer,
                                  Patience::kMost * patience_.answer));
  actions_.ask(peer, asking_->number);
}

void Pairing::asked(int peer, std::uint64_t number) {
  Peer& p = peers_[peer];
  p.silent = false;
  const bool both = asking_ && asking_->peer == peer;
  if (both && rank_ < peer) return;  // it answers my ask, and forgets its own
  const bool usable = number > p.number && !i_ask(peer, number);
  const std::uint64_t agreed = usable ? number : next_number(peer, p.number, false);
  if (both) {  // still due, and there is no wait
    due_.push_front(peer);
    asking_.reset();
  }
  if (!idle() || (paused_ && !declines_)) return actions_.answer(peer, agreed, Answer::busy);
  if (declines_) {
    actions_.answer(peer, agreed, Answer::no);
    return proceed();
  }
  actions_.answer(peer, agreed, Answer::yes);
  begin(peer, agreed);
}

void Pairing::answered(int peer, std::uint64_t number, Answer answer) {
  Peer& p = peers_[peer];
  p.silent = false;
  const bool yes = answer == Answer::yes;
  if (!i_ask(peer, number)) return;
  if (number <= p.number) {  // a later one has begun, or was refused
    if (yes && number < p.number) actions_.refuse(peer, number);
    return;
  }
  const bool awaited = asking_ && asking_->peer == peer;
  if (yes && (awaited || (idle() && !paused_))) {
    asking_.reset();
    refusals_ = 0;
    begin(peer, number);
  } else if (yes) {
    p.number = number;
    actions_.refuse(peer, number);
  } else if (awaited && answer == Answer::no) {
    ++statistics_.dropped;
    asking_.reset();
    refusals_ = 0;
    proceed();
  } else if (awaited) {
    ++statistics_.refused;
    due_.push_front(peer);
    asking_.reset();
    resting_ = true;
    const double dice = uniform_of(random_bits({seed_, static_cast<std::uint64_t>(rank_), alarms_}));
    rest_alarm_ = wake(rest(patience_, ++refusals_, dice));
  }
}

void Pairing::answer_took(int peer, Duration took) {
  Duration& mean = peers_[peer].answers;
  mean = mean == Duration::zero() ? took : (7 * mean + took) / 8;
}

Duration Pairing::rest(const Patience& patience, int refusals, double dice) {
  const int doublings = std::min(refusals - 1, 6);
  return std::chrono::duration_cast<Duration>((0.5 + dice) * (1 << doublings) * patience.again);
}

void Pairing::begin(int peer, std::uint64_t number) {
  peers_[peer].number = number;
  averaging_ = true;
  ++statistics_.begun;
  actions_.begin(peer, number, i_ask(peer, number));
}

void Pairing::ended() {
  averaging_ = false;
  proceed();
}

void Pairing::alarm(std::uint64_t number) {
  if (asking_ && number == answer_alarm_) {
    ++statistics_.unanswered;
    peers_[asking_->peer].silent = true;
    statistics_.dropped += 1 + std::erase(due_, asking_->peer);
    asking_.reset();
  }
  if (number == rest_alarm_) resting_ = false;
  proceed();
}

std::uint64_t Pairing::wake(Duration after) {
  actions_.wake(++alarms_, after);
  return alarms_;
}

}  // namespace starling

// Gossip on virtual workers is its equations, event by event.
#include "starling/gossip/a2cid2.h"
#include "tests/gossip/virtual_gossip.h"

namespace starling {
namespace {

// A gradient of worker a or, if b is another worker, an averaging of both.
struct Event {
  Time at;
  int a, b;
};

float moved_by(int rank, int k, std::size_t i) {
  return 0.1F * std::sin(static_cast<float>(rank + 7 * k) + static_cast<float>(i));
}

// The equations of a2cid2.h, event by event. T = float gives the bits of gossip without momentum.
template <class T>
class Plain {
 public:
  Plain(int rank, const std::vector<float>& x) : rank_(rank), x_(x.begin(), x.end()), x_tilde_(x_) {}

  void mix(Time now, double eta) {
    const double tau = gradient_ == 0 ? 0 : std::min(seconds(now - mixed_) / gradient_, credit_);
    credit_ -= tau;
    const double q = std::exp(-2 * eta * tau);
    for (std::size_t i = 0; i < x_.size() && eta > 0; ++i) {
      const T a = x_[i], b = x_tilde_[i];
      x_[i] = (1 + q) / 2 * a + (1 - q) / 2 * b;
      x_tilde_[i] = (1 - q) / 2 * a + (1 + q) / 2 * b;
    }
    mixed_ = now;
  }
  void gradient(Time now, double eta) {
    mix(now, eta);
    for (std::size_t i = 0; i < x_.size(); ++i) {
      const T d = moved_by(rank_, made_, i);
      x_[i] += d;
      x_tilde_[i] += d;
    }
    if (made_++ > 0) {
      const double took = seconds(now - last_);
      gradient_ = gradient_ == 0 ? took : (gradient_ + took) / 2;
    }
    last_ = now;
  }
  static void average(Plain& i, Plain& j, Time now, const A2cid2& momentum) {
    for (Plain* one : {&i, &j}) one->mix(now, momentum.eta);
    for (std::size_t k = 0; k < i.x_.size(); ++k) {
      const T difference = j.x_[k] - i.x_[k];
      i.x_[k] += T{0.5} * difference;
      j.x_[k] -= T{0.5} * difference;
      i.x_tilde_[k] += static_cast<T>(momentum.alpha_tilde) * difference;
      j.x_tilde_[k] -= static_cast<T>(momentum.alpha_tilde) * difference;
    }
    // At rate 1 on a ring a worker averages once per gradient.
    for (Plain* one : {&i, &j}) one->credit_ = std::min(one->credit_ + 1, Gossip::kMostCredit);
  }
  const std::vector<T>& x() const { return x_; }
  const std::vector<T>& x_tilde() const { return x_tilde_; }

 private:
  const int rank_;
  std::vector<T> x_, x_tilde_;
  int made_ = 0;
  double gradient_ = 0, credit_ = Gossip::kMostCredit;
  Time last_{}, mixed_{};
};

struct Gossiped {
  std::vector<Event> events;
  Values begin, x, x_tilde;
  Time end;
};

constexpr int kMade = 40;  // gradients of each

// On a ring of 5 workers with different speeds, over a network that takes no time.
Gossiped with_events(const GossipOptions& options) {
  constexpr int n = 5;
  Gossiped all{.events = {}, .begin = Values(n), .x = Values(n), .x_tilde = Values(n), .end = Time(6s)};
  VirtualHub cluster(n, [&](int from, int to, std::size_t bytes, Time now) {
    if (bytes > 4 * kSize && from < to) all.events.push_back({now, from, to});
    return Crossing{now, now};
  });
  cluster.run([&](int rank) {
    std::vector<float>& mine = all.begin[static_cast<std::size_t>(rank)];
    for (std::size_t i = 0; i < kSize; ++i) mine.push_back(moved_by(rank, 100, i));
    Gossiper gossip(cluster, rank, options, {mine});
    for (int k = 0; k < kMade; ++k) {
      cluster.time->sleep(100ms + rank * 11ms);
      gossip->gradient(0, [&](const Held& held) {
        add_gradient(held, [&](std::size_t i) { return moved_by(rank, k, i); });
      });
      gossip->stepped();
      all.events.push_back({cluster.time->now(), rank, rank});
    }
    cluster.time->sleep(all.end - cluster.time->now());
    gossip->pause();
    gossip->access(0, [&](const Held& held) {
      all.x[static_cast<std::size_t>(rank)].assign(held.x.begin(), held.x.end());
      all.x_tilde[static_cast<std::size_t>(rank)].assign(held.x_tilde.begin(), held.x_tilde.end());
    });
    cluster.time->sleep(1s);
  });
  return all;
}

template <class T>
std::vector<Plain<T>> again(const Gossiped& all, const A2cid2& momentum) {
  std::vector<Plain<T>> workers;
  for (int rank = 0; rank < 5; ++rank) workers.emplace_back(rank, all.begin[static_cast<std::size_t>(rank)]);
  for (const Event& event : all.events) {
    auto &a = workers[static_cast<std::size_t>(event.a)], &b = workers[static_cast<std::size_t>(event.b)];
    if (event.a == event.b)
      a.gradient(event.at, momentum.eta);
    else
      Plain<T>::average(a, b, event.at, momentum);
  }
  for (auto& worker : workers) worker.mix(all.end, momentum.eta);
  return workers;
}

TEST(VirtualGossip, IsPlainPairGossipToTheBitWithoutMomentum) {
  const Gossiped all = with_events(options_of("ring", 5, false));
  EXPECT_GT(std::ranges::count_if(all.events, [](const Event& event) { return event.a != event.b; }), 50);
  const auto plain = again<float>(all, {});
  for (std::size_t rank = 0; rank < 5; ++rank) EXPECT_EQ(all.x[rank], plain[rank].x()) << rank;
}

TEST(VirtualGossip, IsTheEquationsOfA2cid2EventByEvent) {
  const GossipOptions options = options_of("ring", 5, true);
  const Gossiped all = with_events(options);
  const auto plain = again<double>(all, a2cid2_of(options.rates));
  double drift = 0, plain_drift = 0;  // of the sum of all x + x~, relative to the gradients
  for (std::size_t rank = 0; rank < 5; ++rank) {
    for (std::size_t i = 0; i < kSize; ++i) {
      EXPECT_NEAR(all.x[rank][i], plain[rank].x()[i], 2e-6) << rank;
      EXPECT_NEAR(all.x_tilde[rank][i], plain[rank].x_tilde()[i], 2e-6) << rank;
      double learned = all.begin[rank][i];
      for (int k = 0; k < kMade; ++k) learned += moved_by(static_cast<int>(rank), k, i);
      drift += double{all.x[rank][i]} + double{all.x_tilde[rank][i]} - 2 * learned;
      plain_drift += plain[rank].x()[i] + plain[rank].x_tilde()[i] - 2 * learned;
    }
  }
  EXPECT_LT(std::abs(drift) / (5 * kSize), 1e-6);
  EXPECT_LT(std::abs(plain_drift) / (5 * kSize), 1e-12);
}

}  // namespace
}  // namespace starling

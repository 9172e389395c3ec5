#include "starling/train/virtual_network.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "starling/core/random.h"

namespace starling {
namespace {

// A clock holds 9e9 seconds.
Time later(Time begin, double seconds) { return std::min(begin, kEndOfTime) + duration_of(seconds); }

// Draws from the standard normal distribution (Box and Muller).
double normal(std::uint64_t seed, int worker, std::int64_t k) {
  const auto dice = [&](std::uint64_t which) {
    return uniform_of(
        random_bits({seed, static_cast<std::uint64_t>(worker), static_cast<std::uint64_t>(k), which}));
  };
  return std::sqrt(-2 * std::log(1 - dice(0))) * std::cos(2 * std::numbers::pi * dice(1));
}

}  // namespace

Duration duration_of(double seconds) {
  constexpr double kMost = 1e8;  // a lognormal has no upper bound
  return of_seconds(std::min(seconds, kMost));
}

// mu = -sigma^2 / 2.
double lognormal(double cv, std::uint64_t seed, int worker, std::int64_t k) {
  const double sigma = std::sqrt(std::log(1 + cv * cv));
  return std::exp(sigma * normal(seed, worker, k) - sigma * sigma / 2);
}

Crossing VirtualNetwork::cross(int from, int to, std::size_t bytes, Time now) {
  const double slower = lognormal(cv_, seed_, from, crossings_++);
  const double n = slower * static_cast<double>(bytes);
  const int a = network_.host_of[static_cast<std::size_t>(from)],
            b = network_.host_of[static_cast<std::size_t>(to)];
  if (a == b) {
    const Time sent = now + duration_of(n / network_.inside_rate);
    return {sent, sent + duration_of(slower * network_.inside_latency)};
  }
  const Host &sender = network_.hosts[static_cast<std::size_t>(a)],
             &receiver = network_.hosts[static_cast<std::size_t>(b)];
  const auto slow = links_.find({a, b});
  const Duration latency =
      duration_of(slower * (slow != links_.end() ? slow->second.link.latency : network_.latency));
  Time& sent = sends_[static_cast<std::size_t>(a)];
  Time& received = receives_[static_cast<std::size_t>(b)];
  const Time begin = std::max(now, sent);
  sent = later(begin, n / sender.send);
  received = later(std::max(received, begin + latency), n / receiver.receive);
  const Time there = std::max(sent + latency, received);
  if (slow == links_.end()) return {sent, there};
  Time& crossed = slow->second.busy;
  crossed = later(std::max(crossed, begin), n / slow->second.link.rate);
  return {std::max(sent, crossed), std::max(there, crossed + latency)};
}

}  // namespace starling

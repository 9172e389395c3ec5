#include "starling/membership/door.h"

#include <chrono>
#include <sstream>

#include <fmt/format.h>

#include "starling/core/random.h"
#include "starling/core/text.h"
#include "starling/core/with_lock.h"
#include "starling/transport/tcp/proof.h"
#include "starling/world/ask_again.h"

namespace starling {
namespace {

constexpr std::chrono::milliseconds kLook{100};  // between two looks at the bell

std::string seat_key(int seat) { return fmt::format("knock/{}", seat); }
std::string come_key(int seat) { return fmt::format("come/{}", seat); }
std::string answer_key(std::int64_t life) { return fmt::format("answer/{}", life); }
std::string beat_key(std::int64_t life) { return fmt::format("beat/{}", life); }

}  // namespace

Door::Door(const World& world, const std::string& channel)
    : store_(world.store),
      prefix_(fmt::format("starling/door/{}/", channel)),
      token_(world.token),
      seat_(world.rank),
      seats_(world.size) {}

void Door::set(const std::string& key, const std::string& value) const {
  const std::string full = prefix_ + key;
  store_->set(full, fmt::format("{} {}", tcp::sign(token_, full + " " + value), value));
}

std::optional<std::string> Door::get(const std::string& key) const {
  const std::string full = prefix_ + key;
  const auto said = store_->look(full);
  if (!said) return std::nullopt;
  const auto space = said->find(' ');
  if (space == std::string::npos) return std::nullopt;
  std::string value = said->substr(space + 1);
  if (said->substr(0, space) != tcp::sign(token_, full + " " + value)) return std::nullopt;
  return value;
}

void Door::ring() const { set("bell", std::to_string(new_id())); }
std::string Door::bell() const { return get("bell").value_or(""); }

std::optional<Epoch> Door::epoch() const {
  const auto text = get("epoch");
  const auto epoch = text ? read_epoch(*text, seats_) : std::nullopt;
  return epoch && (run_ == 0 || epoch->run == run_) ? epoch : std::nullopt;
}

void Door::publish(const Epoch& epoch) const {
  const auto there = this->epoch();
  if (there && there->number >= epoch.number) return;
  set("epoch", to_text(epoch));
  ring();
}

void Door::come() const { set(come_key(seat_), "1"); }
bool Door::has_come(int seat) const { return get(come_key(seat)).has_value(); }

void Door::knock(const Knock& mine) const {
  set(seat_key(seat_), fmt::format("{} {} {} {}", mine.life, mine.donor, mine.terms, run_));
  ring();
}

std::optional<Knock> Door::knock_of(int seat) const {
  const auto text = get(seat_key(seat));
  if (!text) return std::nullopt;
  std::istringstream words(*text);
  std::string word[4], more;
  words >> word[0] >> word[1] >> word[2] >> word[3] >> more;
  const auto life = parse_number<std::int64_t>(word[0]);
  const auto donor = parse_number<int>(word[1]);
  const auto terms = parse_number<std::uint32_t>(word[2]);
  const auto run = parse_number<std::int64_t>(word[3]);
  if (!life || !donor || !terms || !run || !more.empty()) return std::nullopt;
  if (*life <= 0 || *donor < 0 || *donor >= seats_ || (run_ != 0 && *run != run_)) return std::nullopt;
  return Knock{.life = *life, .donor = *donor, .terms = *terms};
}

void Door::answer(std::int64_t life, const std::string& refusal) const { set(answer_key(life), refusal); }
std::optional<std::string> Door::answer_to(std::int64_t life) const { return get(answer_key(life)); }

bool Door::is_followed(int seat, std::int64_t life) const {
  const auto knock = knock_of(seat);
  return knock && knock->life != life && answer_to(knock->life).value_or("").empty();
}

void Door::beat(std::int64_t life) const { set(beat_key(life), std::to_string(new_id())); }
std::string Door::beat_of(std::int64_t life) const { return get(beat_key(life)).value_or(""); }

DoorWatch::DoorWatch(const Door& door, std::function<void()> rung, std::function<void()> looked)
    : door_(door), rung_(std::move(rung)), looked_(std::move(looked)), thread_([this] { run(); }) {}

DoorWatch::~DoorWatch() {
  with_lock(mutex_, [this] { stopping_ = true; });
  changed_.notify_all();
  thread_.join();
}

void DoorWatch::run() {
  std::string last;
  std::unique_lock lock(mutex_);
  while (!stopping_) {
    lock.unlock();
    auto pause = kLook;
    try {
      // A store that was started again has no bell.
      if (const std::string bell = door_.bell(); bell != last || bell.empty() || !is_open_) {
        rung_();
        last = bell;
      }
      is_open_ = true;
      looked_();
    } catch (const Error&) {  // nobody can join while the store is lost
      is_open_ = false;
      pause = kAskStoreAgain;
    }
    lock.lock();
    changed_.wait_for(lock, pause, [this] { return stopping_; });
  }
}

}  // namespace starling

// An exchange of four workers, of which three say what the input says (stage.h): blocks over edges
// and in groups, exact averages, renewals. The first byte chooses the kind; each step of this worker
// is a byte, and may play events before the next.
#include "starling/exchange/exchange.h"

#include <array>
#include <numeric>

#include "starling/kernels/update.h"
#include "starling/topology/schedules.h"
#include "tests/fuzz/stage.h"

namespace starling::fuzz {
namespace {

constexpr int kMe = 1, kWorkers = 4, kMostSteps = 12;
constexpr auto kLong = std::chrono::milliseconds(300);
constexpr std::array kSchedules{"ring", "complete", "base-2", "one-peer-exponential-directed"};

std::vector<Contents> kinds() {
  return {{},
          {.wire = Wire::int8},
          {.wire = Wire::bf16, .vectors = 2},
          {.one_in = 2},
          {.one_in = 2, .chooser = Chooser::sender, .may_be_empty = true},
          {.exchanged = Exchanged::pushes, .tail = 1},
          {.chooser = Chooser::sender},  // values of the scheme's own
          {.wire = Wire::int8}};         // of large blocks
}

Contents guarded(Contents contents) {
  if (contents.vectors > 1) contents.jump_guard = 2;
  return contents;
}

class Worker {
 public:
  Worker(std::string_view input, const Contents& contents, const Schedule& schedule,
         const std::vector<std::size_t>& sizes)
      : stage_(input, kMe, kWorkers),
        contents_(contents),
        sizes_(sizes),
        layout_(contents, sizes, schedule.rounds.size()),
        exchange_(stage_.transport(), schedule, sizes,
                  {.patience = {.meet = kLong, .silent = std::chrono::milliseconds(100), .stalled = kLong},
                   .log = kOneLine,
                   .contents = guarded(contents),
                   .renewable = true}) {}

  void run() {
    exchange_.meet();
    for (int step = 0; step < kMostSteps && !stage_.script.ended(); ++step) {
      try {
        act(stage_.script.byte() % 8);
      } catch (const RenewalCalled&) {
        check(exchange_.renewal_called(), "a renewal that nobody has called");
        std::int64_t values[] = {1, 2};
        exchange_.renew(values);
        return;
      }
    }
  }

 private:
  void act(int what) {
    std::array<std::int64_t, 2> whole{7, 1};
    std::array<float, 3> floats{0.5F, 1, -2};
    if (what == 0) check_members(exchange_.average(floats));
    if (what == 1) {
      check_members(exchange_.maximum(whole));
      check(whole[0] >= 7 && whole[1] >= 1, "a maximum below mine");
    }
    if (what == 2) check_members(exchange_.renew(whole));
    if (what == 3) exchange_.call_renewal();
    if (what == 4) exchange_.restart(exchange_.position(false));
    if (what > 4) step();
    check(!exchange_.lost().contains(kMe), "this worker is lost");
  }
  static void check_members(const std::set<int>& members) {
    check(members.empty() || members.contains(kMe), "an average without me");
    check(members.empty() || (*members.begin() >= 0 && *members.rbegin() < kWorkers),
          "a worker that is none");
  }

  void step() {
    for (std::uint32_t b = 0; b < sizes_.size(); ++b) {
      for (const Arrival& arrival : exchange_.finish(static_cast<int>(b))) use(arrival, sizes_[b]);
      const Outgoing mine = exchange_.outgoing(static_cast<int>(b));
      if (mine.values != nullptr) write(static_cast<std::byte*>(mine.values), {exchange_.round(), b});
      exchange_.start(static_cast<int>(b), true);
    }
  }
  void write(std::byte* values, SwapId id) const {
    const std::span block(values, layout_.bytes(id));
    std::ranges::fill(block, std::byte{});
    set_trailer(block, contents_.wire, {});
    if (contents_.chooser == Chooser::mask) return;
    auto* const indices = reinterpret_cast<std::uint32_t*>(values);
    std::iota(indices, indices + layout_.values(id) / 2, 0U);
  }
  // Reads all of it, and mixes values that go without indices.
  void use(const Arrival& arrival, std::size_t size) const {
    crc32c(arrival.theirs.bytes());
    crc32c(arrival.mine.bytes());
    const bool received = !arrival.theirs.bytes().empty(), group = arrival.theirs.wire != contents_.wire;
    if (contents_.may_be_empty) return;  // it may have chosen nothing
    // A mask may choose no value of a small block.
    check(received || arrival.weight == 0 || arrival.mine.bytes().empty(), "nothing to mix");
    if (!received) return;
    check(group || arrival.theirs.bytes().size() == arrival.mine.bytes().size(), "a block of another size");
    const std::size_t values = contents_.vectors * arrival.mine.mask.chosen_of(size) + contents_.tail;
    std::vector<float> x(values);
    const kernels::Mix mix{arrival.weight, arrival.theirs.values(), arrival.mine.values()};
    kernels::update(kernels::Step{}, {&mix, 1}, x.data(), nullptr, {}, {}, values);
  }

  Stage stage_;
  const Contents contents_;
  const std::vector<std::size_t> sizes_;
  const Layout layout_;
  Exchange exchange_;
};

}  // namespace

void read(std::string_view bytes) {
  if (bytes.empty()) return;
  const std::size_t chosen = static_cast<unsigned char>(bytes.front());
  const auto contents = kinds();
  const Schedule schedule = make_schedule(kSchedules[chosen % 4], kWorkers);
  // Large blocks wait for each other.
  const std::vector<std::size_t> sizes =
      chosen / 4 % 8 == 7 ? std::vector<std::size_t>{17'000} : std::vector<std::size_t>{3, 600};
  accepted([&] { Worker(bytes.substr(1), contents[chosen / 4 % contents.size()], schedule, sizes).run(); });
}

}  // namespace starling::fuzz

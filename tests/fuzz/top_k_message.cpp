// A message of another worker with sparse-loco or demo. The first bytes choose its form: one_in and
// the kind of values, the turn, then the length and the chunk of each of three parts. The rest is
// the message.
#include "starling/optim/schemes/top_k_message.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "tests/fuzz/script.h"
#include "tests/fuzz/target.h"

namespace starling::fuzz {

void read(std::string_view bytes) {
  constexpr std::array kOneIn{1, 2, 5, 64, 1024};
  Script script(bytes);
  const std::size_t kind = script.byte(), turn = script.byte();
  std::vector<TopKMessage::Part> parts;
  std::int64_t length = 0;
  for (int p = 0; p < 3; ++p) {
    const std::int64_t of_part = 1 + std::int64_t{script.byte()} * 4, chunk = 1 + std::int64_t{script.byte()};
    parts.push_back({.length = of_part, .chunk = chunk});
    length += of_part;
  }
  const TopKMessage form(parts, kOneIn[kind % kOneIn.size()], kind >= 128);
  std::vector<float> theirs(form.size()), mine(form.size());
  const std::string_view rest = script.bytes(theirs.size() * sizeof(float));
  std::ranges::copy(rest, reinterpret_cast<char*>(theirs.data()));
  // The exchange lets nothing else cross a link.
  for (float& value : theirs) value = std::isfinite(value) ? value : 0;

  const auto n = static_cast<std::size_t>(length);
  std::vector<float> v(n), x(n, 1);
  form.add(theirs, 0.5F, v);
  form.mix_sample(theirs, mine, 0.5F, turn % form.turns(), x);
  const auto changed = static_cast<std::size_t>(std::ranges::count_if(x, [](float one) { return one != 1; }));
  check(changed <= n / form.turns() + 1, "more than a sample has changed");

  // This worker takes away from these values what it sends of them.
  for (float& value : v) value = std::isfinite(value) ? value : 0;
  form.write(v, x, turn % form.turns(), mine);
  std::vector<float> chosen(n);
  form.add(mine, 1, chosen);
  check(std::ranges::all_of(chosen, [](float one) { return std::isfinite(one); }) || kind >= 128,
        "a chosen value is not finite");
  for (std::size_t k = 0; k < n && kind < 128; ++k)
    check(chosen[k] == 0 || chosen[k] == v[k], "another value than was chosen");
}

}  // namespace starling::fuzz

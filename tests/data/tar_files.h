// Tar archives for tests, after "ustar Interchange Format" and "pax Interchange Format" of
// POSIX.1-2017.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include <fmt/format.h>

namespace starling::testing_data {

struct TarMember {
  std::string name, bytes;
  char type = '0';
  std::string prefix{};
  std::string magic{
      "ustar\0"
      "00",
      8};
  std::string size{};  // empty: that of the bytes
};

inline std::string with_sum(std::string header) {
  header.replace(148, 8, "        ");
  unsigned sum = 0;
  for (const char c : header) sum += static_cast<unsigned char>(c);
  return header.replace(148, 8, fmt::format("{:06o}", sum) + std::string("\0 ", 2));
}

inline std::string member_bytes(const TarMember& member) {
  std::string header(512, '\0');
  const auto put = [&](std::size_t at, std::string_view text) { header.replace(at, text.size(), text); };
  put(0, member.name);
  put(100, "0000644");
  put(124, member.size.empty() ? fmt::format("{:011o}", member.bytes.size()) : member.size);
  put(136, "00000000000");
  put(156, {&member.type, 1});
  put(257, member.magic);
  put(345, member.prefix);
  return with_sum(header) + member.bytes + std::string((512 - member.bytes.size() % 512) % 512, '\0');
}

inline std::string tar_end() { return std::string(1024, '\0'); }

inline std::string tar_bytes(const std::vector<TarMember>& members) {
  std::string all;
  for (const TarMember& member : members) all += member_bytes(member);
  return all + tar_end();
}

// "LENGTH KEY=VALUE\n"
inline std::string pax_record(const std::string& key, const std::string& value) {
  const std::string rest = " " + key + "=" + value + "\n";
  std::size_t length = rest.size();
  while (std::to_string(length).size() + rest.size() != length) ++length;
  return std::to_string(length) + rest;
}

}  // namespace starling::testing_data

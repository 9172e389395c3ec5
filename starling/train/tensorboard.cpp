#include "starling/train/tensorboard.h"

#include <bit>
#include <cerrno>
#include <concepts>
#include <cstring>
#include <filesystem>
#include <span>

#include <fmt/format.h>
#include <unistd.h>

#include "starling/core/crc32c.h"
#include "starling/core/error.h"
#include "starling/core/host.h"

namespace starling {
namespace {

template <std::unsigned_integral T>
std::string little_endian(T value) {
  std::string bytes;
  for (std::size_t i = 0; i < sizeof(T); ++i) bytes += static_cast<char>(value >> (8 * i));
  return bytes;
}

// The format masks checksums that are stored within checksummed data.
std::string masked_crc(std::string_view data) {
  const std::uint32_t crc = crc32c(std::as_bytes(std::span(data)));
  return little_endian(((crc >> 15) | (crc << 17)) + 0xa282ead8U);
}

std::string varint(std::uint64_t value) {
  std::string bytes;
  for (; value >= 0x80; value >>= 7) bytes += static_cast<char>(value | 0x80);
  return bytes + static_cast<char>(value);
}

// A field of a protobuf message: its number and storage type, then its value.
std::string field(std::uint64_t number, std::int64_t value) {
  return varint(number << 3) + varint(static_cast<std::uint64_t>(value));
}
std::string field(std::uint64_t number, double value) {
  return varint(number << 3 | 1) + little_endian(std::bit_cast<std::uint64_t>(value));
}
std::string field(std::uint64_t number, float value) {
  return varint(number << 3 | 5) + little_endian(std::bit_cast<std::uint32_t>(value));
}
std::string field(std::uint64_t number, std::string_view value) {  // text, or a message
  return varint(number << 3 | 2) + varint(value.size()) + std::string(value);
}

}  // namespace

EventFile::EventFile(const std::string& folder) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) throw Error(fmt::format("{}: cannot be made: {}", folder, error.message()));
  const std::string name = host_name(), host = name.empty() ? "unknown" : name;
  const double now = unix_seconds();
  path_ = fmt::format("{}/events.out.tfevents.{:.0f}.{}.{}", folder, now, host, getpid());
  file_.open(path_, std::ios::binary);
  append(field(1, now) + field(3, std::string_view("brain.Event:2")));
}

void EventFile::write(std::int64_t step, const Scalars& scalars) {
  std::string summary;
  for (const auto& [tag, value] : scalars) {
    summary += field(1, field(1, tag) + field(2, static_cast<float>(value)));
  }
  append_summary(step, summary);
}

void EventFile::write_text(std::int64_t step, std::string_view tag, std::string_view text) {
  constexpr std::int64_t kString = 7;  // of TensorFlow's DataType
  const std::string tensor = field(1, kString) + field(2, std::string_view()) + field(8, text);
  const std::string metadata = field(1, field(1, std::string_view("text")));
  append_summary(step, field(1, field(1, tag) + field(8, tensor) + field(9, metadata)));
}

void EventFile::append_summary(std::int64_t step, const std::string& summary) {
  append(field(1, unix_seconds()) + field(2, step) + field(5, summary));
}

void EventFile::append(const std::string& event) {
  const std::string length = little_endian(std::uint64_t{event.size()});
  file_ << length << masked_crc(length) << event << masked_crc(event) << std::flush;
  if (!file_) throw Error(fmt::format("{}: cannot be written: {}", path_, std::strerror(errno)));
}

}  // namespace starling

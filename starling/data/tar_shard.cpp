#include "starling/data/tar_shard.h"

#include <algorithm>
#include <optional>
#include <string_view>
#include <utility>

#include <fmt/format.h>

#include "starling/core/error.h"
#include "starling/core/text.h"
#include "starling/data/tar.h"

namespace starling {

namespace {

struct Sample {
  std::string_view name;    // up to the first dot behind the last slash
  std::string_view ending;  // behind that dot; empty: the file is in no sample
};

Sample sample_of(std::string_view file) {
  const std::size_t slash = file.rfind('/'), base = slash == std::string_view::npos ? 0 : slash + 1;
  const std::size_t dot = file.find('.', base);
  if (dot == std::string_view::npos || dot == base) return {};
  return {file.substr(0, dot), file.substr(dot + 1)};
}

bool equal_but_for_case(std::string_view a, std::string_view lower) {
  const auto low = [](char c) { return 'A' <= c && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; };
  return std::ranges::equal(a, lower, {}, low);
}

std::optional<std::int64_t> label_of(std::span<const std::byte> bytes) {
  std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  while (!text.empty() && (text.back() == '\n' || text.back() == '\r' || text.back() == ' '))
    text.remove_suffix(1);
  const auto label = parse_number<std::uint32_t>(text);
  return label && *label < TarShard::kMostLabels ? std::optional<std::int64_t>(*label) : std::nullopt;
}

}  // namespace

TarShard::TarShard(const std::string& path) : path_(path), file_(path) {
  const auto fail = [&](const std::string& why) { throw Error(fmt::format("{}: {}", path, why)); };
  std::string sample;  // the name that the members below share
  std::optional<TarFile> jpeg;
  std::optional<std::int64_t> label;
  const auto finish = [&] {
    if (jpeg && !label)
      fail(fmt::format("{} has no file .cls beside it, with its label", short_of(jpeg->name)));
    if (label && !jpeg) fail(fmt::format("{} has no file .jpg beside it", short_of(sample + ".cls")));
    if (jpeg) images_.push_back({std::move(jpeg->name), jpeg->bytes, *label});
    jpeg.reset();
    label.reset();
  };
  TarReader archive(path, file_.bytes());
  while (std::optional<TarFile> file = archive.next()) {
    const auto [name, ending] = sample_of(file->name);
    if (ending.empty()) continue;
    if (name != sample) {
      finish();
      sample = name;
    }
    const auto once = [&](bool is_there) {
      if (is_there) fail(fmt::format("{} is the second of its kind in its sample", short_of(file->name)));
    };
    if (equal_but_for_case(ending, "cls")) {
      once(label.has_value());
      label = label_of(file->bytes);
      if (!label) fail(fmt::format("{} holds no label from 0 to {}", short_of(file->name), kMostLabels - 1));
    } else if (equal_but_for_case(ending, "jpg") || equal_but_for_case(ending, "jpeg")) {
      once(jpeg.has_value());
      jpeg = std::move(file);
    }
  }
  finish();
  if (images_.empty()) fail("has no image NAME.jpg with its label NAME.cls");
}

std::string TarShard::name(std::int64_t image) const {
  return fmt::format("{}: {}", path_, short_of(at(image).name));
}

}  // namespace starling

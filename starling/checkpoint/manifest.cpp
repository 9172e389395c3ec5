#include "starling/checkpoint/manifest.h"

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>

#include <fmt/format.h>

#include "starling/checkpoint/manifest_json.h"
#include "starling/core/crc32c.h"
#include "starling/core/error.h"
#include "starling/core/file.h"
#include "starling/core/text.h"

namespace starling {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kFormat = "starling checkpoint";
constexpr int kVersion = 1;
constexpr int kDepth = 4;
constexpr std::uint64_t kMostManifest = 16 << 20;
constexpr int kMostWorkers = 1 << 20;

std::string hex(std::uint32_t crc) { return fmt::format("{:08x}", crc); }

}  // namespace

std::vector<EarlierWorkers> before_others(const Manifest& manifest) {
  std::vector<EarlierWorkers> before = manifest.before;
  EarlierWorkers& last = before.emplace_back();
  last.step = manifest.step;
  last.steps.assign(static_cast<std::size_t>(manifest.workers), manifest.step);
  for (const WorkerFile& file : manifest.files) last.steps[static_cast<std::size_t>(file.worker)] = file.step;
  return before;
}

std::string worker_file(int worker) { return fmt::format("worker-{}.safetensors", worker); }

std::string WorkerFile::name() const { return worker_file(worker); }

nlohmann::ordered_json manifest_json(const Manifest& manifest) {
  Json files = Json::array();
  for (const WorkerFile& file : manifest.files) {
    files.push_back({{"worker", file.worker},
                     {"file", file.name()},
                     {"step", file.step},
                     {"bytes", file.digest.bytes},
                     {"crc32c", hex(file.digest.crc32c)}});
  }
  Json recipe = Json::object();
  for (const auto& [key, value] : manifest.recipe) recipe[key] = value;
  Json json{{"format", kFormat},           {"version", kVersion},         {"step", manifest.step},
            {"workers", manifest.workers}, {"seconds", manifest.seconds}, {"files", std::move(files)}};
  for (const EarlierWorkers& earlier : manifest.before)
    json["before"].push_back({{"step", earlier.step}, {"steps", earlier.steps}});
  json["recipe"] = std::move(recipe);
  return json;
}

std::string to_json(const Manifest& manifest) {
  Json json = manifest_json(manifest);
  const std::string body = json.dump(2);
  json["crc32c"] = hex(crc32c(std::as_bytes(std::span(body))));
  return json.dump(2) + "\n";
}

Manifest parse_manifest(const std::string& text, const std::string& path) {
  // The place of the first `piece`.
  const auto place = [&](const std::string& piece) {
    const std::size_t at = text.find(piece);
    return at == std::string::npos ? std::uint64_t{0} : at;
  };
  const auto whole = [&](const Json& in, const char* key, std::int64_t least, std::int64_t most) {
    const Json& value = in.at(key);
    if (value.is_number_float())
      refuse(path, place(value.dump()), fmt::format("{} is not a whole number", key));
    const auto number = value.get<std::int64_t>();
    if (number < least || number > most) {
      refuse(path, place(fmt::format("\"{}\": {}", key, value.dump())),
             fmt::format("{} is {}: allowed are {} to {}", key, value.dump(), least, most));
    }
    return number;
  };
  constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();
  Manifest manifest;
  try {
    const auto shallow = [&](int depth, nlohmann::detail::parse_event_t, const Json&) {
      if (depth > kDepth) throw Error(fmt::format("{}: nested deeper than {} levels", path, kDepth));
      return true;
    };
    const Json json = Json::parse(text, shallow);
    if (!json.is_object() || json.value("format", Json()) != kFormat) {
      refuse(path, 0,
             fmt::format("this is not the manifest of a checkpoint: no \"format\": \"{}\"", kFormat));
    }
    if (json.at("version") != kVersion) {
      refuse(path, place("\"version\""),
             fmt::format("format version {}; this Starling reads version {}",
                         json.at("version").is_number() ? json.at("version").dump()
                                                        : short_of(json.at("version").dump()),
                         kVersion));
    }
    manifest.step = whole(json, "step", 0, kMost);
    manifest.workers = static_cast<int>(whole(json, "workers", 1, kMostWorkers));
    manifest.seconds = json.at("seconds").get<double>();
    if (!(manifest.seconds >= 0)) refuse(path, place("\"seconds\""), "seconds: allowed is a number from 0");
    std::int64_t began = 0;  // with these workers
    for (const Json& entry : json.value("before", Json::array())) {
      EarlierWorkers earlier{.step = whole(entry, "step", began, manifest.step)};
      for (const Json& step : entry.at("steps")) {
        if (!step.is_number_integer() || step.get<std::int64_t>() < began)
          refuse(path, place("\"steps\""), fmt::format("steps: allowed are whole numbers from {}", began));
        earlier.steps.push_back(step.get<std::int64_t>());
      }
      if (earlier.steps.empty() || earlier.steps.size() > kMostWorkers)
        refuse(path, place("\"steps\""), fmt::format("steps: allowed are 1 to {} workers", kMostWorkers));
      began = earlier.step;
      manifest.before.push_back(std::move(earlier));
    }
    int last = -1;
    for (const Json& entry : json.at("files")) {
      const WorkerFile file{
          .worker = static_cast<int>(whole(entry, "worker", last + 1, manifest.workers - 1)),
          .digest = {static_cast<std::uint64_t>(whole(entry, "bytes", 0, kMost)),
                     static_cast<std::uint32_t>(
                         std::stoul(entry.at("crc32c").get<std::string>(), nullptr, 16))},
          .step = whole(entry, "step", began, kMost)};
      const auto name = entry.at("file").get<std::string>();
      if (name != file.name()) {
        refuse(path, place(entry.at("file").dump()),
               fmt::format("file {} of worker {}: allowed is {}, in the same folder", short_of(name),
                           file.worker, file.name()));
      }
      last = file.worker;
      manifest.files.push_back(file);
    }
    if (manifest.files.empty()) refuse(path, place("\"files\""), "there is no worker's file");
    for (const auto& [key, value] : json.at("recipe").items()) {
      manifest.recipe.emplace_back(key, value.get<std::string>());
    }
  } catch (const Json::parse_error& error) {
    refuse(path, error.byte, "invalid JSON from here on");
  } catch (const Json::exception& error) {
    refuse(path, 0, fmt::format("this is not the manifest of a checkpoint: {}", error.what()));
  } catch (const std::logic_error&) {  // from stoul
    refuse(path, place("\"crc32c\""), "a checksum is not a hexadecimal number of 32 bits");
  }
  const std::string canonical = to_json(manifest);
  const auto [mine, theirs] = std::mismatch(canonical.begin(), canonical.end(), text.begin(), text.end());
  if (mine != canonical.end() || theirs != text.end()) {
    refuse(path, static_cast<std::uint64_t>(theirs - text.begin()),
           "damaged or edited: it differs from its checksum from here on");
  }
  return manifest;
}

Manifest read_manifest(const std::string& path) {
  return parse_manifest(read_text(path, kMostManifest), path);
}

}  // namespace starling

// Small files and checkpoints in a temporary folder.
#pragma once

#include <string>

#include <gtest/gtest.h>

#include "starling/checkpoint/checkpoint.h"
#include "tests/folder.h"
#include "tests/refusal.h"

namespace starling {

// A file as its bytes, from a header and the data behind it.
inline std::string raw(const std::string& header, const std::string& data) {
  std::string text(8, '\0');
  for (std::size_t i = 0; i < 8; ++i) text[i] = static_cast<char>(header.size() >> (8 * i) & 0xff);
  return text + header + data;
}

inline Digest write_small(const std::string& path, int seed) {
  SafetensorsWriter writer(path,
                           {{.name = "model.count", .dtype = "U8", .shape = {3}},
                            {.name = "model.weight", .dtype = "F32", .shape = {2, 2}},
                            {.name = "model.empty", .dtype = "F32", .shape = {0, 7}},
                            {.name = "steps", .dtype = "I64", .shape = {}}},
                           {{"format", "test"}});
  const std::int64_t steps = 15;
  const float weight[4] = {1.5F + static_cast<float>(seed), -2, 0.25F, 1e-30F};
  const std::uint8_t count[3] = {1, static_cast<std::uint8_t>(seed), 255};
  writer.write(std::as_bytes(std::span(&steps, 1)));
  writer.write(std::as_bytes(std::span(weight)));
  writer.write(std::as_bytes(std::span(count)));
  return writer.finish();
}

// root/step-N of three workers.
inline Manifest write_checkpoint(const std::string& root, std::int64_t step, int keep = 2) {
  Manifest manifest{.step = step, .workers = 3, .seconds = 1.25, .recipe = {{"optimizer.lr", "0.01"}}};
  const std::string draft = draft_checkpoint(root, step);
  for (int w = 0; w < 3; ++w) {
    manifest.files.push_back({w, write_small(draft + "/" + worker_file(w), w + static_cast<int>(step))});
  }
  commit_checkpoint(root, manifest, keep);
  return manifest;
}

}  // namespace starling

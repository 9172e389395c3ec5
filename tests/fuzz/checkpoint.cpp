// The average model of a checkpoint of two workers. The first two bytes are the length of the first
// worker's file; the rest is the second's.
#include "starling/checkpoint/consensus.h"
#include "starling/core/crc32c.h"
#include "tests/folder.h"
#include "tests/fuzz/target.h"

namespace starling::fuzz {

void read(std::string_view bytes) {
  if (bytes.size() < 2) return;
  const std::size_t length =
      static_cast<unsigned char>(bytes[0]) + 256U * static_cast<unsigned char>(bytes[1]);
  bytes.remove_prefix(2);
  const std::string_view first = bytes.substr(0, length), second = bytes.substr(first.size());
  const Folder folder;
  Manifest manifest{.workers = 2};
  for (const std::string_view content : {first, second}) {
    const int worker = static_cast<int>(manifest.files.size());
    spill(folder / worker_file(worker), std::string(content));
    manifest.files.push_back(
        {.worker = worker, .digest = {content.size(), crc32c(std::as_bytes(std::span(content)))}});
  }
  spill(folder / "manifest.json", to_json(manifest));
  accepted([&] {
    const AverageModel model(Checkpoint(folder.path), [](Level, const std::string&) {});
    write_consensus(model, folder / "average");
    const SafetensorsReader written(folder / "average");
    check(written.tensors().size() == model.tensors().size(), "another number of tensors is written");
    for (const TensorInfo& tensor : model.tensors())
      check(model.read(tensor).size() == written.find(tensor.name)->bytes(), "a tensor of another size");
  });
}

}  // namespace starling::fuzz

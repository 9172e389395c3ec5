#include "starling/checkpoint/safetensors.h"

#include <vector>

#include "tests/fuzz/target.h"

void starling::fuzz::read(std::string_view bytes) {
  const TemporaryFile file(bytes, ".safetensors");
  accepted([&] {
    const SafetensorsReader reader(file.path());
    std::size_t all = 0;
    for (const TensorInfo& tensor : reader.tensors()) {
      std::vector<std::byte> values(tensor.bytes());
      reader.read(tensor, values);
      check(reader.find(tensor.name) == &tensor, "a tensor is not found by its name");
      all += values.size();
    }
    check(all < bytes.size() && reader.digest().bytes == bytes.size(), "other bytes than in the file");
  });
}

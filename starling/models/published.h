// A model whose weights others publish under other names.
#pragma once

#include <string>

namespace starling {

class Published {
 public:
  virtual ~Published() = default;
  // The model's name of a tensor in a published file; empty: the model has no use for it.
  virtual std::string own_name(const std::string& published) const = 0;
};

}  // namespace starling

// What an Optimizer is made of.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "starling/exchange/exchange.h"
#include "starling/optim/blocks.h"
#include "starling/optim/optimizer.h"
#include "starling/optim/schemes/scheme.h"
#include "starling/transport/c10d/collectives.h"

namespace starling {

struct Optimizer::Engine {
  World world;
  Options options;
  std::string channel;
  std::vector<at::Tensor> buffers;  // of the module
  std::vector<std::pair<std::string, at::Tensor>>
      model;  // all its parameters and buffers, each once, by name
  std::vector<Block> blocks;
  std::size_t parameters = 0;  // tensors in all groups, at construction
  std::unique_ptr<Collectives> collectives;
  std::unique_ptr<Exchange> exchange;
  std::unique_ptr<Scheme> scheme;
};

}  // namespace starling

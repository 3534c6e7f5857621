// A start from weights that another program has saved: the files of a Llama or Qwen2 model are
// checked against the model before a session opens, and each rank then reads the elements that it
// holds, and no others. Optimizer states begin at zero.
// Thread: one at a time. Blocks on files.
#pragma once

#include <string>
#include <vector>

#include "model_config.hpp"
#include "strata/safetensors.hpp"
#include "strata/session.hpp"

namespace train_gpt {

class Pretrained {
 public:
  // Throws strata::Error that names the file and the tensor: missing, of another shape or an
  // unreadable type, a bias that is not 0, or a file that breaks the format.
  Pretrained(const std::string& directory, const GptConfig& model);

  // What the files hold that the model does not use, a line each.
  const std::vector<std::string>& warnings() const { return warnings_; }

  // Sets every unit of the session's model, which is that of the constructor. Ranks go from unit to
  // unit together, so that none waits longer for another than reading a unit takes. Collective.
  void initialize(strata::Session& session);

 private:
  void check_bias(const strata::safetensors::Tensor& tensor);
  void take_extra(const std::vector<std::string>& names);

  strata::safetensors::Reader reader_;
  std::vector<std::string> names_;  // of llama_tensors()
  std::vector<std::string> warnings_;
};

}  // namespace train_gpt

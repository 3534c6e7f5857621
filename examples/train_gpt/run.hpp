// One training run from the opened data to the summary: the job of main() once the command line,
// the configuration and the data are known to be good.
// Thread: one at a time. Collective over the job's ranks. Blocks.
#pragma once

#include "data.hpp"
#include "job.hpp"
#include "options.hpp"
#include "output.hpp"
#include "pretrained.hpp"
#include "strata/config.hpp"

namespace train_gpt {

struct RunInputs {
  Options options;
  strata::Config config;
  std::unique_ptr<Dataset> data;
  std::unique_ptr<Pretrained> pretrained;  // null: weights are drawn from the seed
};

// Trains, and prints progress and the summary from the first rank. Throws strata::Error; peers are
// told before it leaves. ExitCode::interrupted when a signal ended the run early.
ExitCode run_training(RunInputs& inputs, const Job& job, Output& output);

}  // namespace train_gpt

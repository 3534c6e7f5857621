#include "tool.hpp"

int main(int argc, char** argv) { return strata::tool::run(argc, argv, stdout, stderr); }

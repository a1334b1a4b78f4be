/* protocol: the version of proto/tandem.proto that this build speaks. A newer minor version only
 * adds fields; another major version is refused in Hello, and in a worker's report. */
#ifndef TANDEM_COMMON_PROTOCOL_H
#define TANDEM_COMMON_PROTOCOL_H

enum { TD_PROTOCOL_MAJOR = 1, TD_PROTOCOL_MINOR = 3 };

/* The oldest minor version of a worker that a router takes. Before 1.2 a worker did not say what it
 * speaks, and one of 1.0 ignores penalties and gives no log-probabilities: its answers would be
 * wrong without a word. */
enum { TD_WORKER_MINOR_MIN = 2 };

/* Since this minor version a router takes GatewayGenerate.completion_json. */
enum { TD_COMPLETIONS_MINOR = 2 };

/* Since this minor version a gateway understands a stream of several answers. */
enum { TD_CHOICES_MINOR = 3 };

#endif

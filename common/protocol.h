/* protocol: the version of proto/tandem.proto that this build speaks. A newer minor version only adds
 * fields; another major version is refused in Hello. */
#ifndef TANDEM_COMMON_PROTOCOL_H
#define TANDEM_COMMON_PROTOCOL_H

enum { TD_PROTOCOL_MAJOR = 1, TD_PROTOCOL_MINOR = 1 };

#endif

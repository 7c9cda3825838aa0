# SPDX-License-Identifier: Apache-2.0
# Each line of a text as a string of C, without trigraphs.
s/[\\"]/\\&/g
s/??/?\\?/g
s/.*/    "&\\n",/

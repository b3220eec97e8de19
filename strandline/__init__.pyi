from strandline.frontends.client.client import Client as Client
from strandline.frontends.python.flow import Stream as Stream
from strandline.frontends.python.flow import lookup as lookup
from strandline.frontends.python.flow import stream as stream
from strandline.frontends.python.pipeline import DeskRun as DeskRun
from strandline.frontends.python.pipeline import Pipeline as Pipeline
from strandline.frontends.python.windows import counted as counted
from strandline.frontends.python.windows import cumulative as cumulative
from strandline.frontends.python.windows import previous as previous
from strandline.frontends.python.windows import session as session
from strandline.frontends.python.windows import sliding as sliding
from strandline.frontends.python.windows import tumbling as tumbling

__version__: str
